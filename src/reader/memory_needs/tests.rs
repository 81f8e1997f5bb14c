//! Memory plans of whole setups. `recorded_plans.txt` has a line for the arrays and arguments of each, then one for its plan.

use super::*;
use crate::error::Result;
use crate::info;
use crate::options::{Arguments, Options};

use std::path::Path;

use serde_json::{Map, Value, json};

/// Writes the metadata of an array of 4-byte elements with this shape and these chunks, and codecs behind `bytes`.
pub(in crate::reader) fn write_array(folder: &Path, shape: [u64; 2], chunk: [u64; 2], codecs: &str) {
    const BYTES: &str = r#"{"name": "bytes", "configuration": {"endian": "little"}}"#;
    std::fs::create_dir_all(folder).unwrap();
    let codecs = match codecs {
        "sharded" => format!(
            r#"[{{"name": "sharding_indexed", "configuration": {{"chunk_shape": [1, 100],
                "codecs": [{BYTES}], "index_codecs": [{BYTES}, {{"name": "crc32c"}}]}}}}]"#
        ),
        codecs => format!("[{BYTES} {codecs}]"),
    };
    let metadata = format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": {shape:?}, "data_type": "float32",
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": {chunk:?}}}}},
            "chunk_key_encoding": {{"name": "default"}}, "fill_value": 0, "codecs": {codecs}}}"#
    );
    std::fs::write(folder.join("zarr.json"), metadata).unwrap();
}

/// A codec of [`write_array`].
pub(in crate::reader) const ZSTD: &str =
    r#", {"name": "zstd", "configuration": {"level": 0, "checksum": false}}"#;

/// The memory plan of a reader, in words.
fn plan_text(arguments: &Arguments) -> Result<String> {
    let setup = Setup::new(arguments)?;
    let (plan, gpu) = match setup.options.device {
        None => (setup.plan_on_cpu()?, String::new()),
        Some(_) => {
            let budget = setup.options.device_budget(|| unreachable!())?;
            let (plan, gpu) = setup.plan_on_gpu(budget, None)?;
            let GpuMemoryPlan { budget_bytes, gpu_workers, arena_bytes, .. } = gpu;
            let text = format!(
                " budget {budget_bytes} workers {gpu_workers} arena {arena_bytes} uploads {} packed {} staging {} pinned {}",
                gpu.upload_pool_bytes, gpu.packed_bytes, gpu.staging_bytes, gpu.largest_pinned_bytes
            );
            (plan, text)
        }
    };
    let MemoryPlan { depth, decode_threads, host_bytes, chunk_cache_bytes, fetched_bytes } = plan;
    Ok(format!(
        "depth {depth}{gpu} host {host_bytes} cache {chunk_cache_bytes} fetched {fetched_bytes} threads {decode_threads}"
    ))
}

#[test]
fn memory_plans_are_the_recorded_ones() {
    const BZ2: &str = r#", {"name": "numcodecs.bz2", "configuration": {"level": 5}}"#;
    let folder = tempfile::tempdir().unwrap();
    for (name, shape, chunk, codecs) in [
        ("raw", [64, 1000], [1, 1000], ""),
        ("zstd", [4096, 1000], [4, 500], ZSTD),
        ("again", [512, 1000], [8, 1000], ZSTD),
        ("bz2", [256, 1000], [1, 1000], BZ2),
        ("sharded", [100_000, 1000], [1000, 1000], "sharded"),
        ("index", [1_000_000, 1000], [1_000_000, 1000], "sharded"),
        ("large", [16, 1 << 22], [1, 1 << 22], ZSTD),
        ("huge", [4, 1 << 26], [1, 1 << 26], ZSTD),
        ("tiny", [4096, 1 << 16], [1, 16], ZSTD),
    ] {
        write_array(&folder.path().join(name), shape, chunk, codecs);
    }
    let store = folder.path().to_str().unwrap();
    let recorded = include_str!("recorded_plans.txt");
    let mut found = String::new();
    for case in recorded.lines().step_by(2) {
        let (names, given) = case.split_once(' ').unwrap();
        let mut all = json!({
            "path": names.split('+').map(|name| format!("{store}/{name}")).collect::<Vec<_>>(),
            "io": "posix", "num_io_threads": 3, "num_decode_threads": 4, "host_memory_budget": 1 << 28,
        });
        let given: Map<String, Value> = serde_json::from_str(given).unwrap();
        all.as_object_mut().unwrap().extend(given);
        let plan = plan_text(&info::arguments(&all.to_string()).unwrap());
        let plan = plan.unwrap_or_else(|error| error.to_string());
        found += &format!("{case}\n  {}\n", plan.replace(store, "STORE"));
    }
    assert!(found == recorded, "the plans are now:\n{found}");
}

#[test]
fn an_automatic_budget_is_raised_as_far_as_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    write_array(folder.path(), [64, 1000], [1, 1000], "");
    let mut arguments = Arguments::new(folder.path().to_str().unwrap());
    (arguments.batch_size, arguments.device_id) = (16, 0);
    let setup = Setup::new(&arguments).unwrap();
    let batch = setup.batch_bytes();
    let plan = |bytes, most_bytes| setup.plan_on_gpu(DeviceBudget { bytes, most_bytes }, None);

    let (raised, gpu) = plan(batch, 10 * batch).unwrap();
    assert!((4 * batch..6 * batch).contains(&gpu.budget_bytes) && raised.depth == 1, "{raised:?} {gpu:?}");
    let (enough, same) = plan(gpu.budget_bytes, gpu.budget_bytes).unwrap();
    assert_eq!((same.budget_bytes, enough.depth), (gpu.budget_bytes, 1));
    assert_eq!(plan(64 * batch, 128 * batch).unwrap().1.budget_bytes, 64 * batch);
    let refused = plan(batch, gpu.budget_bytes - 1).unwrap_err().to_string();
    assert!(refused.ends_with(&format!("give at least {}", gpu.budget_bytes)), "{refused}");
    // What no memory can hold is refused, too.
    let setup = Setup { options: Options { cache_bytes: u64::MAX, ..setup.options.clone() }, ..setup };
    for bytes in [1 << 20, u64::MAX / 2] {
        assert!(setup.plan_on_gpu(DeviceBudget { bytes, most_bytes: bytes }, None).is_err());
    }
}

#[test]
fn boxes_of_a_chunk_are_those_of_the_store_with_the_most() {
    let folder = tempfile::tempdir().unwrap();
    let stores = ["a", "b"].map(|name| folder.path().join(name));
    for store in &stores {
        write_array(store, [4, 100], [1, 100], "");
        let metadata = std::fs::read_to_string(store.join("zarr.json")).unwrap();
        let named = metadata.replacen('{', r#"{"dimension_names": ["t", "x"], "#, 1);
        std::fs::write(store.join("zarr.json"), named).unwrap();
    }
    // Ten indices in one run, then ten that are a run each.
    let mut pieces = vec![json!([0, 10])];
    pieces.extend((0..10).map(|i| json!(99 - i * i)));
    let select = json!({"x": pieces});
    let regions =
        json!([{"roi_start": [0, 0], "roi_end": [4, 10]}, {"roi_start": [0, 10], "roi_end": [4, 20]}]);
    let given = json!({
        "path": stores, "join": "separate", "window": [1, 10], "batch_size": 8,
        "select": select.to_string(), "per_store": regions.to_string(),
    });
    let setup = Setup::new(&info::arguments(&given.to_string()).unwrap()).unwrap();
    let boxes = |store: usize| setup.geometry[store][0].boxes(setup.domains.windows(store));
    assert_eq!((boxes(0), boxes(1), setup.boxes_of_chunk()), (1, 10, 80));
}
