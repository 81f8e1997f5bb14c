//! The position of a reader in its order of samples, as a checkpoint holds it.
//!
//! A checkpoint is JSON: the epoch, the batches of it that were read, the seed, and a *fingerprint* of the reader. A position
//! only makes sense together with what it counts in, so a checkpoint of a reader with another fingerprint is refused, with the
//! first difference named.

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::plan::{ArrayGeometry, Geometry, PartGeometry};
use crate::sampler::{self, Axis, Buffer, Domains, Order, Played, Position};

use serde_json::{Map, Value, json};

/// Version of the state.
const VERSION: u64 = 3;
/// The entries that a state may have.
const ENTRIES: [&str; 9] =
    ["version", "epoch", "played", "batch", "num_shards", "batch_size", "seed", "reader", "shuffle"];

/// A place in the order of samples.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The order of samples.
    pub order: Order,
    /// Seed of the order.
    pub seed: i64,
    /// Number of the next batch.
    pub batch: u64,
}

/// What a position is only meaningful together with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What a checkpoint says about its reader.
    pub fingerprint: Value,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Dimensions that samples are taken along.
    pub dimensions: usize,
}

impl Cursor {
    /// The samples of a batch.
    pub fn samples(&self, batch: u64) -> Vec<u64> {
        self.order.clone().batch(batch).iter().map(|drawn| drawn.sample).collect()
    }

    /// The state before batch number `batch`.
    pub fn save(&self, identity: &Identity, batch: u64) -> Value {
        let Position { epoch, played, batch } = self.order.position(batch);
        let played: Vec<[u64; 3]> =
            played.iter().map(|part| [part.shards, part.batch_size, part.batches]).collect();
        let mut state = json!({
            "version": VERSION,
            "epoch": epoch,
            "played": played,
            "batch": batch,
            "num_shards": self.order.shards(),
            "batch_size": identity.batch_size,
            "seed": self.seed,
            "reader": identity.fingerprint,
        });
        if let Some((_, buffer)) = self.order.shuffle().and_then(|shuffle| shuffle.groups.as_ref()) {
            state["shuffle"] = json!([buffer.depth, buffer.strands, buffer.linked, buffer.passes]);
        }
        state
    }

    /// The place that a state says. If it was saved with other reader shards or batches, the rest of its epoch is divided
    /// among the reader shards and batches of this reader.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: no state, one of another version, or one of another reader.
    pub fn restore(&self, identity: &Identity, state: &[u8]) -> Result<Self> {
        let state: Value = serde_json::from_slice(state)
            .map_err(|error| refused(format!("its state is no JSON ({error})")))?;
        let Some(entries) = state.as_object() else {
            return Err(refused(format!("its state is {state}, not an object")));
        };
        check_version(entries)?;
        let fingerprint = entries.get("reader");
        if let Some(fingerprint) = fingerprint {
            check_fingerprint(fingerprint, &identity.fingerprint)?;
        }
        let position = self.read_position(entries, identity.batch_size)?;
        let mut buffer = read_buffer(entries, identity.dimensions)?;
        if fingerprint.is_some_and(|theirs| theirs["choice"] != identity.fingerprint["choice"]) {
            check_other_choice(&position)?;
            // It was made for other samples.
            buffer = None;
        }
        let mut restored = self.clone();
        if let Some(seed) = entries.get("seed") {
            restored.seed = seed.as_i64().ok_or_else(|| refused(format!("its state has seed={seed}")))?;
        }
        restored.order.reshuffle(restored.seed as u64, buffer);
        restored.order.start_at(&position);
        if restored.order.pads()
            && position.batch > 0
            && restored.order.position(position.batch - 1).epoch != position.epoch
        {
            return Err(refused(format!("its state has batch={}, and the epoch is shorter", position.batch)));
        }
        restored.batch = position.batch;
        Ok(restored)
    }

    /// The position that the entries say, in batches of this reader.
    fn read_position(&self, entries: &Map<String, Value>, batch_size: u64) -> Result<Position> {
        let own = (self.order.shards(), batch_size);
        let theirs = (
            read_number(entries, "num_shards", Some(own.0))?,
            read_number(entries, "batch_size", Some(own.1))?,
        );
        let mut position = Position {
            epoch: read_number(entries, "epoch", None)?,
            batch: read_number(entries, "batch", None)?,
            ..Position::default()
        };
        let played = entries.get("played").cloned().unwrap_or_else(|| json!([]));
        let played: Vec<[u64; 3]> = serde_json::from_value(played)
            .map_err(|error| refused(format!("its state has \"played\" that cannot be read ({error})")))?;
        for [shards, batch_size, batches] in played {
            position.played.push(Played { shards, batch_size, batches });
        }
        if !self.order.pads() && theirs != own {
            return Err(refused(format!(
                "it was written with {} reader shard(s) and batches of {}, this reader has {} and {}; only readers with pad_last_batch=True can change num_shards and batch_size",
                theirs.0, theirs.1, own.0, own.1
            )));
        }
        if !self.order.pads() && (!position.played.is_empty() || position.epoch > 0) {
            let problem =
                "its \"epoch\" and \"played\" count epochs, which only readers with pad_last_batch=True do";
            return Err(refused(problem.into()));
        }
        for (name, value) in [("num_shards", theirs.0), ("batch_size", theirs.1)] {
            if value == 0 {
                return Err(refused(format!("its state has {name}=0")));
            }
        }
        if theirs != own && position.batch > 0 {
            let (shards, batch_size) = theirs;
            position.played.push(Played { shards, batch_size, batches: position.batch });
            position.batch = 0;
        }
        let most = self.order.samples();
        if position.played.iter().any(|part| part.shards == 0 || part.shards > most || part.batch_size == 0) {
            return Err(refused("its \"played\" counts reader shards or batches that cannot be".into()));
        }
        Ok(position)
    }
}

/// The error of a state that cannot be used.
pub(super) fn refused(problem: String) -> Error {
    Error::Checkpoint { problem }
}

fn check_version(entries: &Map<String, Value>) -> Result<()> {
    let version = entries.get("version").unwrap_or(&Value::Null);
    if *version != VERSION {
        return Err(refused(format!(
            "its version is {version}, not {VERSION}: another release of zarr-dali wrote it, whose states say less or other things; finish the epoch with that release, or begin a new one"
        )));
    }
    match entries.keys().find(|name| !ENTRIES.contains(&name.as_str())) {
        Some(unknown) => Err(refused(format!("its state has \"{unknown}\", which nobody knows"))),
        None => Ok(()),
    }
}

/// Samples may be chosen anew from epoch to epoch, but not within one.
fn check_other_choice(position: &Position) -> Result<()> {
    if position.batch == 0 && position.played.is_empty() {
        return Ok(());
    }
    Err(refused(
        "it was written in the middle of an epoch of other samples: samples, weights, samples_per_epoch or what the mask keeps were others; give those of that epoch (to a Loader with set_samples, before load_state_dict), or begin a new one".into(),
    ))
}

/// Refuses the fingerprint of another reader. Differences that an error can name are looked for first, and differences of
/// digests last.
fn check_fingerprint(theirs: &Value, ours: &Value) -> Result<()> {
    const NAMED: [&str; 7] =
        ["sampler", "arrays", "stack", "stick_to_shard", "pad_last_batch", "random_shuffle", "window"];
    let differs = |name: &str| theirs[name] != ours[name];
    if differs("join") {
        // Only readers of separate stores say how they join them.
        let [theirs, ours] = [theirs, ours].map(|reader| reader["join"].as_str().unwrap_or("concat"));
        return Err(refused(format!("it was written with join=\"{theirs}\", this reader has \"{ours}\"")));
    }
    if let Some(name) = NAMED.into_iter().find(|name| differs(name)) {
        let (theirs, ours) = (&theirs[name], &ours[name]);
        return Err(refused(format!("it was written with {name}={theirs}, this reader has {ours}")));
    }
    if !theirs["snapshots"].is_null() && differs("snapshots") {
        let describe = |snapshots: &Value| match snapshots {
            Value::Array(names) => names.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
            Value::Null => "none".into(),
            digest => digest.to_string(),
        };
        let (theirs, ours) = (describe(&theirs["snapshots"]), describe(&ours["snapshots"]));
        return Err(refused(format!(
            "it was written for Icechunk snapshot {theirs}, this reader has {ours}: the branch has moved on, or another one was given; open the snapshot that it was written for (path \"...|icechunk:@SNAPSHOT\"), or begin a new epoch"
        )));
    }
    if differs("samples") || differs("windows") {
        return Err(refused(format!(
            "it was written for {} samples, this reader has {}: stride, dilation, offsets, roi_start, roi_end, exclude, breaks, per_store or the extents of the arrays were others",
            theirs["samples"], ours["samples"]
        )));
    }
    if differs("shapes") {
        let what = "data types or shapes of the arrays, or the stores that are joined,";
        return Err(refused(format!("{what} were others when it was written")));
    }
    if differs("chunks") {
        let describe = |chunks: &Value| match chunks {
            Value::Null => "of which each belongs to one sample".to_string(),
            chunks => format!("of {chunks} along the sampled dimensions"),
        };
        let (theirs, ours) = (describe(&theirs["chunks"]), describe(&ours["chunks"]));
        return Err(refused(format!(
            "it was written for read chunks {theirs}, this reader has read chunks {ours}, and a shuffled order depends on them; go on with the store that it was written for, or begin a new epoch"
        )));
    }
    Ok(())
}

fn read_number(entries: &Map<String, Value>, name: &str, default: Option<u64>) -> Result<u64> {
    match (entries.get(name), default) {
        (None, Some(default)) => Ok(default),
        (value, _) => value.and_then(Value::as_u64).filter(|&value| value < 1 << 62).ok_or_else(|| {
            let value = value.unwrap_or(&Value::Null);
            refused(format!("its state has {name}={value}, which is no number that can be used"))
        }),
    }
}

/// The buffer of a shuffle, if the state has one.
fn read_buffer(entries: &Map<String, Value>, dimensions: usize) -> Result<Option<Buffer>> {
    let Some(value) = entries.get("shuffle") else { return Ok(None) };
    let read = serde_json::from_value(value.clone());
    // States of earlier releases have no passes: there was one.
    let with_one =
        |_| serde_json::from_value(value.clone()).map(|(depth, strands, linked)| (depth, strands, linked, 1));
    let (depth, strands, linked, passes) = read
        .or_else(with_one)
        .map_err(|error| refused(format!("its state has \"shuffle\" that cannot be read ({error})")))?;
    let depth = Some(depth).filter(|depth| (1..=dimensions).contains(depth));
    let Some((depth, strands)) = depth.zip(Some(strands).filter(|&strands| strands > 0 && passes > 0)) else {
        return Err(refused(format!("its state has shuffle={value}, which cannot be")));
    };
    Ok(Some(Buffer { depth, strands, linked, passes }))
}

/// What a checkpoint says about its reader: the arguments and the store, as far as the order of samples depends on them.
pub(super) fn fingerprint(
    dataset: &Dataset,
    geometry: &Geometry,
    domains: &Domains,
    order: &Order,
    stacked: bool,
) -> Value {
    let arrays = &dataset.arrays;
    let shapes: Vec<Value> = arrays
        .iter()
        .map(|array| {
            let shapes: Vec<_> = array.parts.iter().map(|part| &part.shape).collect();
            json!([array.first().element.name(), shapes])
        })
        .collect();
    let names = short(json!(arrays.iter().map(|array| array.first().name.as_str()).collect::<Vec<_>>()));
    // Of each store that is joined.
    let snapshots = arrays.first().map(|array| array.parts.iter().map(|part| part.objects.snapshot()));
    let snapshots: Vec<Option<String>> = snapshots.into_iter().flatten().collect();
    let window: Vec<u64> = domains.first().axes().iter().map(Axis::extent).collect();
    let windows = match domains.is_separate() {
        true => {
            format!("{:?}", domains.iter().map(|domain| (domain.store, &domain.windows)).collect::<Vec<_>>())
        }
        false => format!("{:?}", domains.first()),
    };
    let mut fingerprint = json!({
        "sampler": sampler::VERSION,
        "arrays": names,
        "shapes": digest(&json!(shapes).to_string()),
        "chunks": short(shuffled_chunks(geometry, domains, order)),
        "samples": domains.len(),
        "window": window,
        "windows": digest(&windows),
        "stack": stacked,
        "stick_to_shard": order.sticks(),
        "pad_last_batch": order.pads(),
        "random_shuffle": order.shuffle().is_some(),
    });
    if domains.is_separate() {
        fingerprint["join"] = "separate".into();
    }
    if snapshots.iter().any(Option::is_some) {
        fingerprint["snapshots"] = short(json!(snapshots));
    }
    fingerprint
}

/// FNV-1a. Not for safety: it only has to differ where a checkpoint is given to another reader by mistake.
fn digest(text: &str) -> String {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// The value itself while its text is short, else a digest.
fn short(value: Value) -> Value {
    match value.to_string() {
        text if text.len() > 300 => digest(&text).into(),
        _ => value,
    }
}

/// The chunk grids that a shuffled order depends on: for each array that samples are taken along, and each store that
/// is joined, the extents of its read chunks along the sampled dimensions; once if they are the same in all stores. Null
/// for readers in order, and where no chunk belongs to several samples.
fn shuffled_chunks(geometry: &Geometry, domains: &Domains, order: &Order) -> Value {
    if order.shuffle().is_none_or(|shuffle| shuffle.groups.is_none()) {
        return Value::Null;
    }
    let dimensions = domains.first().dimensions();
    let sampled = (0..geometry[0].len()).filter(|&array| geometry[0][array].follows_samples());
    let chunks = |array: usize| {
        let of_array = |arrays: &Vec<ArrayGeometry>| {
            let own: Vec<usize> = (0..dimensions).filter_map(|axis| arrays[array].dimension(axis)).collect();
            let of_part = |part: &PartGeometry| own.iter().map(|&d| part.read_chunk_shape[d]).collect();
            arrays[array].parts.iter().map(of_part).collect::<Vec<Vec<u64>>>()
        };
        let mut parts: Vec<Vec<u64>> = geometry.iter().flat_map(of_array).collect();
        if parts.windows(2).all(|pair| pair[0] == pair[1]) {
            parts.truncate(1);
        }
        parts
    };
    json!(sampled.map(chunks).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::memory_needs::tests::write_array;
    use super::super::setup::Setup;
    use super::*;
    use crate::options::Arguments;

    #[test]
    fn a_shuffle_without_passes_has_one() {
        let read = |shuffle: Value| {
            let entries = json!({ "shuffle": shuffle });
            read_buffer(entries.as_object().unwrap(), 2)
        };
        let buffer = |passes| Some(Buffer { depth: 1, strands: 4, linked: true, passes });
        assert_eq!(read(json!([1, 4, true])).unwrap(), buffer(1));
        assert_eq!(read(json!([1, 4, true, 7])).unwrap(), buffer(7));
        for bad in
            [json!([1, 4, true, 0]), json!([3, 4, true, 1]), json!([1, 0, true]), json!([1, 4]), json!("x")]
        {
            assert!(read(bad).is_err());
        }
    }

    /// A reader of 60 shuffled windows in batches of 4, which pads its batches or does not.
    fn setup(folder: &tempfile::TempDir, pads: bool) -> Setup {
        write_array(folder.path(), [64, 1000], [8, 1000], "");
        let arguments = Arguments {
            window: Some(vec![5]),
            batch_size: 4,
            random_shuffle: true,
            pad_last_batch: pads,
            seed: 7,
            ..Arguments::new(folder.path().to_str().unwrap())
        };
        Setup::new(&arguments).unwrap()
    }

    /// A state with other entries.
    fn changed(state: &Value, entries: Value) -> Vec<u8> {
        let mut state = state.clone();
        for (path, value) in entries.as_object().unwrap() {
            match path.split_once('.') {
                Some((outer, inner)) => state[outer][inner] = value.clone(),
                None => state[path] = value.clone(),
            }
        }
        state.to_string().into_bytes()
    }

    #[test]
    fn a_saved_place_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let Setup { start, identity, .. } = setup(&folder, true);
        let other = Cursor { seed: 1, ..start.clone() };
        for batch in [0, 3, 15, 40] {
            let state = start.save(&identity, batch).to_string();
            let restored = other.restore(&identity, state.as_bytes()).unwrap();
            assert_eq!((restored.seed, restored.batch), (7, batch % 15), "{state}");
            assert_eq!(restored.samples(restored.batch), start.samples(batch), "{state}");
        }
        // Batches of another size: what they left of the epoch begins anew.
        let state = changed(&start.save(&identity, 18), json!({"batch_size": 2}));
        let restored = other.restore(&identity, &state).unwrap();
        assert_eq!((restored.batch, restored.order.position(0).epoch), (0, 1));
        let played = Played { shards: 1, batch_size: 2, batches: 3 };
        assert_eq!(restored.order.position(0).played, [played]);
    }

    #[test]
    fn other_samples_may_be_chosen_between_epochs() {
        let folder = tempfile::tempdir().unwrap();
        let setup = |samples: &str| {
            write_array(folder.path(), [64, 1000], [8, 1000], "");
            let arguments = Arguments {
                batch_size: 2,
                random_shuffle: true,
                pad_last_batch: true,
                samples: samples.into(),
                ..Arguments::new(folder.path().to_str().unwrap())
            };
            Setup::new(&arguments).unwrap()
        };
        let (one, other, all) = (setup("[1, 5, 9, 30]"), setup("[2, 6, 9, 30, 31, 32]"), setup(""));
        assert_ne!(one.identity.fingerprint["choice"], other.identity.fingerprint["choice"]);
        assert!(all.identity.fingerprint.get("choice").is_none());
        for (from, to) in [(&one, &other), (&other, &one), (&one, &all), (&all, &one)] {
            // Batch 2 of the lists, and 32 of all, begins an epoch.
            let epoch = from.start.order.samples().div_ceil(2);
            let state = from.start.save(&from.identity, epoch).to_string();
            let restored = to.start.restore(&to.identity, state.as_bytes()).unwrap();
            assert_eq!((restored.batch, restored.order.position(0).epoch), (0, 1));
            let buffer = |cursor: &Cursor| {
                cursor.order.shuffle().and_then(|shuffle| shuffle.groups.clone()).unwrap().1
            };
            assert_eq!(buffer(&restored), buffer(&to.start));
            let state = from.start.save(&from.identity, epoch + 1).to_string();
            let error = to.start.restore(&to.identity, state.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("other samples") && error.contains("set_samples"), "{error}");
        }
    }

    #[test]
    fn states_that_cannot_be_used_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let Setup { start, identity, .. } = setup(&folder, false);
        let state = start.save(&identity, 3);
        assert_eq!(start.restore(&identity, state.to_string().as_bytes()).unwrap().batch, 3);
        let refused = |start: &Cursor, identity: &Identity, state: &[u8], reason: &str| {
            let error = start.restore(identity, state).unwrap_err().to_string();
            assert!(error.contains(reason), "{error} without {reason}");
        };
        refused(&start, &identity, b"\xff", "no JSON");
        refused(&start, &identity, b"[]", "not an object");
        for (entries, reason) in [
            (json!({"version": 2}), "its version is 2, not 3"),
            (json!({"author": 1}), "\"author\", which nobody knows"),
            (json!({"reader.window": [6]}), "window=[6], this reader has [5]"),
            (json!({"reader.samples": 61}), "61 samples, this reader has 60"),
            (json!({"reader.windows": "0"}), "60 samples, this reader has 60"),
            (json!({"reader.shapes": "0"}), "data types or shapes"),
            (
                json!({"reader.snapshots": ["A"], "reader.samples": 61}),
                "snapshot \"A\", this reader has none",
            ),
            (
                json!({"reader.chunks": null}),
                "each belongs to one sample, this reader has read chunks of [[[8]]]",
            ),
            (json!({"batch": -1}), "batch=-1, which is no number"),
            (json!({"batch": 1u64 << 62}), "which is no number"),
            (json!({"epoch": null}), "epoch=null"),
            (json!({"epoch": 1}), "count epochs"),
            (json!({"played": [[1, 2, 3]]}), "count epochs"),
            (json!({"played": 1}), "\"played\" that cannot be read"),
            (json!({"num_shards": 2}), "2 reader shard(s) and batches of 4, this reader has 1 and 4"),
            (json!({"shuffle": [1]}), "\"shuffle\" that cannot be read"),
            (json!({"shuffle": [2, 1, false]}), "which cannot be"),
            (json!({"shuffle": [1, 0, false]}), "which cannot be"),
            (json!({"seed": "x"}), "seed=\"x\""),
        ] {
            refused(&start, &identity, &changed(&state, entries), reason);
        }
        let Setup { start, identity, .. } = setup(&folder, true);
        let state = start.save(&identity, 3);
        for (entries, reason) in [
            (json!({"batch_size": 0}), "batch_size=0"),
            (json!({"num_shards": 0}), "num_shards=0"),
            (json!({"played": [[61, 1, 1]]}), "that cannot be"),
            (json!({"played": [[0, 1, 1]]}), "that cannot be"),
            (json!({"batch": 16}), "batch=16, and the epoch is shorter"),
        ] {
            refused(&start, &identity, &changed(&state, entries), reason);
        }
    }
}
