//! What a reader would do with a store, found out beforehand: for `zarr_dali.info()` and `zarr-dali info`.
//!
//! Reads metadata and the sizes of chunk files, never a chunk. Every array is opened on its own, so that one which is
//! refused does not hide the others; what is said of it comes from the code that would read it.

mod stored;

use crate::codec::{self, DecodePath};
use crate::dataset::{Dataset, Sharding};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::json;
use crate::options::{Arguments, DeviceBudget, Join, Options, argument};
use crate::presence;
use crate::reader::{Setup, decode_path};
use crate::store::{Access, KeptDocuments, Session, Sessions};
use stored::{Stored, spread};

use serde_json::{Value, from_str, from_value, json};

/// Batches of a reader that stand for all.
const MAX_COUNTED_BATCHES: u64 = 64;
/// Samples of a reader that stand for all.
const MAX_COUNTED_SAMPLES: u64 = 64;

/// The operator's arguments from a JSON object: their names as in Python, `path` and `arrays` as lists. Others keep
/// their defaults.
///
/// # Errors
/// Names that are none of the operator's arguments, and values of other types than theirs.
pub fn arguments(text: &str) -> Result<Arguments> {
    let mut arguments = Arguments::new("");
    let wrong = |name| move |problem: serde_json::Error| argument(name, format!("{problem}"));
    let given: serde_json::Map<String, Value> = from_str(text).map_err(wrong("arguments"))?;
    macro_rules! set {
        ($name:ident, $value:ident, $($field:ident),+) => {
            match $name.as_str() {
                "path" => arguments.paths = from_value($value).map_err(wrong("path"))?,
                $(stringify!($field) => {
                    arguments.$field = from_value($value).map_err(wrong(stringify!($field)))?;
                })+
                _ => return Err(argument("reader_arguments", format!("\"{}\" is none that info knows", $name))),
            }
        };
    }
    for (name, value) in given {
        set!(
            name,
            value,
            arrays,
            join,
            per_store,
            follow_links,
            storage_options,
            stack,
            stack_channels,
            mask_and_scale,
            dtype,
            mean,
            std,
            normalize,
            window,
            stride,
            dilation,
            offsets,
            dimension_offsets,
            roi_start,
            roi_end,
            select,
            exclude,
            breaks,
            samples,
            weights,
            samples_per_epoch,
            mask,
            min_foreground,
            mask_cache,
            return_index,
            initial_fill,
            position,
            random_shuffle,
            seed,
            shard_id,
            num_shards,
            stick_to_shard,
            pad_last_batch,
            prefetch_queue_depth,
            missing_chunks,
            decode,
            gpu_zstd,
            io,
            num_io_threads,
            num_decode_threads,
            cache_bytes,
            cache_dir,
            cache_dir_bytes,
            device_memory_budget,
            host_memory_budget,
            batch_size,
            device_id
        );
    }
    Ok(arguments)
}

/// Describes the arrays that are named, or all that are there, and what a reader of them would do.
///
/// # Errors
/// Arguments that cannot be used, paths without a store, names without an array. An array that cannot be read is none
/// of these: its description says why.
pub fn describe(arguments: &Arguments) -> Result<Value> {
    let options = Options::check(arguments)?;
    codec::register();
    // A store is opened for each array.
    let _documents = KeptDocuments::new();
    // Patterns are looked up once.
    let paths = Dataset::stores(&arguments.paths, &Access::new(arguments)?)?;
    let arguments = &Arguments { paths, ..arguments.clone() };
    let named = !arguments.arrays.is_empty();
    let names = if named {
        arguments.arrays.clone()
    } else {
        Dataset::names(&arguments.paths, &Access::new(arguments)?)?
    };
    let free = || Gpu::open(options.device.unwrap_or_default())?.free_bytes();
    let budget = options.device.map(|_| options.device_budget(free));
    let describer = Describer { options, budget };
    let mut arrays = vec![];
    for (number, name) in names.iter().enumerate() {
        let mut asked = arguments.clone();
        asked.arrays = Some(name.clone()).filter(|name| !name.is_empty()).into_iter().collect();
        (asked.stack, asked.stack_channels) = (false, false);
        for values in [&mut asked.mean, &mut asked.std] {
            if values.len() == names.len() {
                *values = vec![values[number]];
            }
        }
        asked.normalize = of_array(&arguments.normalize, name, number);
        let declared = Dataset::declared(&arguments.paths, name, &Access::new(arguments)?)?;
        let mut description = json!({
            "name": name,
            "zarr_format": declared.zarr_format,
            "shape": declared.shape,
            "data_type": declared.data_type,
            "chunk": declared.chunk_shape,
            "inner_chunk": Some(declared.inner_chunk_shape).filter(|shape| !shape.is_empty()),
            "codecs": declared.codecs,
        });
        match describer.opened(&asked, &mut description) {
            Ok(()) => {}
            Err(error @ (Error::ArrayNotFound { .. } | Error::ArrayIsNotGroup { .. })) if named => {
                return Err(error);
            }
            Err(error) => {
                description["decode_path"] = "refused".into();
                description["reason"] = error.to_string().into();
            }
        }
        arrays.push(description);
    }
    // All arrays of a group are seldom meant to be read together.
    let together = (named && names.len() > 1).then(|| describer.reading(arguments, None));
    Ok(json!({"arrays": arrays, "together": together}))
}

/// The part of `normalize` for one array; text that cannot be read as it is.
fn of_array(normalize: &str, name: &str, number: usize) -> String {
    match json::parse(normalize.as_bytes()) {
        Ok(Value::Object(entries)) => {
            let of_name = |(key, _): &(&String, &Value)| key.trim_matches('/') == name;
            let entry = entries.iter().find(of_name);
            entry.map_or_else(String::new, |(_, entry)| json!([entry]).to_string())
        }
        Ok(Value::Array(entries)) if number < entries.len() => json!([entries[number]]).to_string(),
        _ => normalize.into(),
    }
}

/// The part of `select` for an array with these dimensions; text that cannot be read as it is.
fn of_dimensions(select: &str, names: &[String]) -> String {
    match from_str::<serde_json::Map<String, Value>>(select) {
        Ok(mut given) => {
            given.retain(|name, _| names.contains(name));
            if given.is_empty() { String::new() } else { Value::Object(given).to_string() }
        }
        Err(_) => select.into(),
    }
}

struct Describer {
    options: Options,
    /// GPU memory for a reader on the GPU backend.
    budget: Option<Result<DeviceBudget>>,
}

impl Describer {
    /// Adds what is known of an array once it is open.
    fn opened(&self, asked: &Arguments, description: &mut Value) -> Result<()> {
        let join = Join::check(asked)?;
        let dataset = Dataset::open_joined(&asked.paths, &asked.arrays, &Access::new(asked)?, join)?;
        let array = &dataset.arrays[0];
        let select = of_dimensions(&asked.select, &array.first().dimension_names);
        let asked = &Arguments { select, ..asked.clone() };
        let decode_paths =
            array.parts.iter().map(|part| decode_path(part, &self.options)).collect::<Result<Vec<_>>>()?;
        let on_cpu = decode_paths.iter().find(|decode_path| matches!(decode_path, DecodePath::Cpu(_)));
        let first = array.first();
        let sessions = Sessions::new(Session::WHILE_OPENING);
        let stored: Stored =
            array.parts.iter().map(|part| Stored::of(part, array.parts.len(), &sessions)).sum();
        let shapes: Vec<&[u64]> = match join {
            Join::Concat => vec![&array.shape],
            Join::Separate => array.parts.iter().map(|part| &part.shape[..]).collect(),
        };
        let values = |shape: &&[u64]| shape.iter().fold(1, |all: u64, &extent| all.saturating_mul(extent));
        let values = shapes.iter().map(values).fold(0, u64::saturating_add);
        description["shape"] = array.shape[..first.stored_dimensions()].into();
        if join == Join::Separate {
            let shapes = shapes.iter().map(|shape| &shape[..first.stored_dimensions()]);
            description["shapes"] = shapes.collect::<Vec<_>>().into();
        }
        description["data_type"] = first.data_type.as_str().into();
        description["stores"] = array.parts.len().into();
        let snapshots: Vec<_> = array.parts.iter().map(|part| part.objects.snapshot()).collect();
        if snapshots.iter().any(Option::is_some) {
            description["snapshots"] = snapshots.into();
        }
        description["read_chunk_bytes"] = first.read_chunk_bytes().into();
        description["decoded_bytes"] = values.saturating_mul(first.stored.size_bytes() as u64).into();
        description["stored_bytes"] = stored.bytes.into();
        description["chunks"] = stored.chunks.into();
        description["chunks_present"] = stored.present.into();
        description["sampled"] = stored.sampled.into();
        description["decode_path"] = if on_cpu.is_some() { "CPU" } else { "GPU" }.into();
        description["reason"] = on_cpu.unwrap_or(&decode_paths[0]).to_string().into();
        let reading = self.reading(asked, Some(&stored));
        if array.parts.iter().any(|part| part.objects.costs_requests()) {
            description["consolidated"] = array.parts.iter().all(|part| part.is_consolidated()).into();
        }
        description["output_type"] =
            reading.pointer("/outputs/0/type").cloned().unwrap_or_else(|| first.element.name().into());
        description["reading"] = reading;
        Ok(())
    }

    /// What a reader with these arguments would do, or why there can be none.
    fn reading(&self, asked: &Arguments, stored: Option<&Stored>) -> Value {
        let mut asked = asked.clone();
        presence::resolve(&mut asked)
            .and_then(|()| Setup::new(&asked))
            .and_then(|setup| self.describe_setup(&setup, stored))
            .unwrap_or_else(|error| json!({"problem": error.to_string()}))
    }

    fn describe_setup(&self, setup: &Setup, stored: Option<&Stored>) -> Result<Value> {
        setup.check_batch()?;
        let batch = setup.start.samples(setup.start.batch);
        let batch_chunks = setup.chunks_of(&batch);
        let mut reading = describe_batches(setup, &batch, &batch_chunks);
        if self.budget.is_some() {
            reading["gpu_memory"] = gpu_memory(setup, &batch_chunks)?;
        }
        if let Some(stored) = stored {
            reading["remote"] = epoch_of_requests(setup, stored);
        }
        match self.chosen(setup) {
            Ok(chosen) => reading["chosen"] = chosen,
            Err(problem) => reading["not_chosen"] = problem.into(),
        }
        Ok(reading)
    }

    /// The memory plan of a reader, or why there is none. `lanes`, `landing_bytes` and `resident_bytes` are former names.
    fn chosen(&self, setup: &Setup) -> std::result::Result<Value, String> {
        let text = |error: Error| error.to_string();
        let Some(budget) = &self.budget else {
            let plan = setup.plan_on_cpu().map_err(text)?;
            return Ok(json!({
                "depth": plan.depth,
                "budget_bytes": plan.host_bytes,
                "chunk_cache_bytes": plan.chunk_cache_bytes,
                "resident_bytes": plan.chunk_cache_bytes,
                "decode_threads": plan.decode_threads,
            }));
        };
        let budget = budget.as_ref().map_err(Error::to_string)?;
        let (plan, gpu) = setup.plan_on_gpu(*budget, None).map_err(text)?;
        Ok(json!({
            "depth": plan.depth,
            "gpu_workers": gpu.gpu_workers,
            "lanes": gpu.gpu_workers,
            "arena_bytes": gpu.arena_bytes,
            "upload_pool_bytes": gpu.upload_pool_bytes,
            "landing_bytes": gpu.upload_pool_bytes,
            "chunk_cache_bytes": plan.chunk_cache_bytes,
            "resident_bytes": plan.chunk_cache_bytes,
            "budget_bytes": gpu.budget_bytes,
            "pinned_bytes": plan.host_bytes,
            "io": if setup.reads_with_cufile() { "gds" } else { "posix" },
            "io_threads": self.options.io_threads,
            "decode_threads": plan.decode_threads,
        }))
    }
}

/// Samples, outputs, and the chunks of samples and of the first batch.
fn describe_batches(setup: &Setup, batch: &[u64], batch_chunks: &[Vec<u64>]) -> Value {
    let domains = &setup.domains;
    let arrays = &setup.dataset.arrays;
    let sample_stored: u64 = arrays
        .iter()
        .zip(&setup.geometry[0])
        .map(|(array, geometry)| {
            let size = array.first().stored.size_bytes() as u64;
            geometry.sample_extents(domains.first()).into_iter().fold(size, u64::saturating_mul)
        })
        .fold(0, u64::saturating_add);
    let decoded = |chunks: &[Vec<u64>]| -> u64 {
        let of_part = |(array, part, chunks): (usize, usize, u64)| {
            chunks.saturating_mul(setup.dataset.part(array, part).read_chunk_bytes())
        };
        flat(chunks).map(of_part).fold(0, u64::saturating_add)
    };
    let count = |chunks: &[Vec<u64>]| flat(chunks).map(|(_, _, chunks)| chunks).sum::<u64>();
    let samples: Vec<Vec<Vec<u64>>> =
        spread(domains.len(), MAX_COUNTED_SAMPLES).map(|sample| setup.chunks_of(&[sample])).collect();
    let counted = samples.len() as f64;
    let mean = |total: u64| total as f64 / counted;
    let outputs: Vec<Value> = setup
        .outputs
        .iter()
        .map(|output| json!({"type": output.element.name(), "shape": output.shape, "layout": output.layout}))
        .collect();
    json!({
        "samples": setup.start.order.samples(),
        "batch_size": batch.len(),
        "outputs": outputs,
        "batch_bytes": setup.batch_bytes(),
        "chunks_per_sample": mean(samples.iter().map(|chunks| count(chunks)).sum()),
        "chunks_per_batch": count(batch_chunks),
        "sample_amplification":
            mean(samples.iter().map(|chunks| decoded(chunks)).sum()) / sample_stored as f64,
        "batch_amplification":
            decoded(batch_chunks) as f64 / (sample_stored * batch.len() as u64) as f64,
    })
}

/// Requests and bytes of an epoch of one array in stores that are not folders of this machine, estimated from its first batches and the sizes
/// of some chunks. Null for arrays in folders only, and where batches have more chunks than are counted.
fn epoch_of_requests(setup: &Setup, stored: &Stored) -> Value {
    let array = &setup.dataset.arrays[0];
    if array.parts.iter().all(|part| part.objects.folder().is_some()) {
        return Value::Null;
    }
    let batch = |ahead: u64| setup.start.samples(setup.start.batch + ahead);
    let batches = setup.start.order.samples().div_ceil(batch(0).len().max(1) as u64);
    let looked_at = batches.clamp(1, MAX_COUNTED_BATCHES);
    let samples: Vec<u64> = (0..looked_at).flat_map(batch).collect();
    let total = |counts: &[Vec<u64>]| flat(counts).map(|(.., chunks)| chunks).sum::<u64>() as f64;
    // Batches share chunks.
    let chunks = total(&setup.chunks_of(&samples)) / looked_at as f64 * batches as f64;
    let inner = array.first().sharding.as_ref().map(Sharding::inner_chunks);
    let bytes =
        chunks * stored.bytes as f64 / (stored.chunks.max(1) as f64 * inner.unwrap_or(1).max(1) as f64);
    let split = Options::SPLIT_ABOVE_BYTES as f64;
    let requests = match inner {
        Some(inner) => {
            // Each batch asks for what it needs of a sharded chunk together; its index is asked for once.
            let objects = (0..looked_at).map(|ahead| setup.objects_of(&batch(ahead)));
            let Some(objects) = objects.collect::<Option<Vec<_>>>() else { return Value::Null };
            let of_batch = objects.iter().map(|counts| total(counts)).sum::<f64>() / looked_at as f64;
            (chunks / inner as f64) + (of_batch * batches as f64).max(bytes / split)
        }
        None if bytes > chunks * split => chunks * (bytes / chunks / (0.75 * split)).ceil(),
        None => chunks,
    };
    json!({"requests": requests.round() as u64, "bytes": bytes.round() as u64})
}

/// The most GPU memory that a batch needs if all its chunks are decoded at once.
fn gpu_memory(setup: &Setup, chunks: &[Vec<u64>]) -> Result<Value> {
    let units = setup.unit_bytes(None)?;
    let (mut encoded, mut decoded, mut scratch) = (0, 0, 0);
    for ((array, part, chunks), unit) in flat(chunks).zip(units) {
        let decode_path = &setup.parts[(array, part)].decode_path;
        let chunk_bytes = setup.dataset.part(array, part).read_chunk_bytes();
        // The arena holds what the GPU decodes; chunks that the CPU decodes are uploaded beside it.
        let (encoded_bytes, in_arena) = match decode_path {
            DecodePath::Gpu(chain) => (chain.most().encoded_bytes, chunk_bytes),
            DecodePath::Cpu(_) => (0, 0),
        };
        encoded += chunks * encoded_bytes;
        decoded += chunks * chunk_bytes;
        scratch += chunks * unit.saturating_sub(in_arena);
    }
    Ok(json!({
        "outputs": setup.batch_bytes(),
        "encoded": encoded,
        "decoded": decoded,
        "scratch": scratch,
    }))
}

/// Counts with their array and part.
fn flat(counts: &[Vec<u64>]) -> impl Iterator<Item = (usize, usize, u64)> {
    counts
        .iter()
        .enumerate()
        .flat_map(|(array, parts)| parts.iter().enumerate().map(move |(part, &chunks)| (array, part, chunks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_their_names_and_defaults() {
        let given =
            arguments(r#"{"path": ["a"], "window": [2, 3], "batch_size": 8, "stack": true}"#).unwrap();
        assert_eq!((given.paths, given.window, given.batch_size), (vec!["a".into()], Some(vec![2, 3]), 8));
        assert!(given.stack && given.stride.is_none());
        for (text, name) in
            [(r#"{"window": "x"}"#, "window"), (r#"{"windows": 1}"#, "windows"), ("[]", "arguments")]
        {
            let error = arguments(text).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
