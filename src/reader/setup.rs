//! Everything about a reader that is known before it starts: from arguments to a [`Setup`].
//!
//! Opens the store and checks all that can be checked without a chunk, a GPU or a memory budget. A setup does not change any
//! more; `zarr_dali.info()` asks it what a reader would do.

use super::channel_stack::{self, ChannelStack};
use super::checkpoint::{self, Cursor, Identity};
use super::checks::{check_dimensions, check_order_bytes, check_same_channels, check_shapes, check_stack};
use super::choice::{Chosen, choice, choice_bytes};
use super::chunk_reuse::{ChunkReuse, ChunkSharing, Visiting};
use super::domains::domains;
use super::outputs::{Output, Stacking, outputs};
use super::selection::{check_selected, selected_shape, selection};
use crate::assemble::{Conversion, Places, conversions, device};
use crate::codec::{self, DecodePath};
use crate::dataset::{ArrayInfo, Dataset};
use crate::decode::part::{PartPlan, PartPlans, Placement};
use crate::error::{Error, Result, log_once};
use crate::fetch::cufile::Driver;
use crate::options::{Arguments, Decode, Io, Join, Options, argument};
use crate::plan::{ArrayGeometry, Geometry, OutputGeometry};
use crate::sampler::{Domain, Domains, Order, OrderArguments, Run, Shuffle, Windows};

use crate::store::Access;

use std::sync::Arc;

use serde_json::Value;

/// A reader before it has memory and threads.
pub struct Setup {
    /// The arrays that are read.
    pub dataset: Arc<Dataset>,
    /// The windows that are samples.
    pub domains: Domains,
    /// Where the windows lie in each array, in each domain.
    pub geometry: Arc<Geometry>,
    /// Where each array lies in its output.
    pub placing: Arc<[OutputGeometry]>,
    /// How the chunks of each part of each array are decoded.
    pub parts: Arc<PartPlans>,
    /// One output for each array, or a single one if they are stacked, and the samples' indices if they are asked for.
    pub outputs: Vec<Output>,
    /// Whether the arrays are stacked to one output.
    pub stacked: bool,
    /// The first array that samples are taken along.
    pub first_sampled: usize,
    /// What each channel is, if arrays are stacked to channels; null elsewhere.
    pub channels: Value,
    /// Whether the last output holds the samples' indices.
    pub indexed: bool,
    /// Decoded bytes that later batches can reuse.
    pub reuse: ChunkReuse,
    /// Host memory of a shuffle's lists.
    pub order_bytes: u64,
    /// Where the reader starts in the order of samples.
    pub start: Cursor,
    /// What checkpoints are checked against.
    pub identity: Identity,
    /// The tunables.
    pub options: Options,
}

impl Setup {
    /// The shuffle draws from 3/4 of the memory for cached chunks; the rest is for chunks that are fetched ahead.
    const SHUFFLE_SHARE: (u64, u64) = (3, 4);

    /// Opens the store and checks the arguments.
    ///
    /// # Errors
    /// Arguments and stores that cannot be read, and shuffles that exceed the host budget.
    pub fn new(arguments: &Arguments) -> Result<Self> {
        let options = Options::check(arguments)?;
        codec::register();
        let (join, access) = (Join::check(arguments)?, Access::new(arguments)?);
        let dataset = Dataset::open_joined(&arguments.paths, &arguments.arrays, &access, join)?;
        let dataset = Arc::new(dataset);
        check_dimensions(&dataset)?;
        let reference = dataset.reference;
        let chosen = selection(&arguments.select, &dataset)?;
        let seen = |shape: &[u64]| selected_shape(shape, &chosen[reference]);
        let domains = domains(&dataset.arrays[reference], seen, arguments, &options)?;
        let (windows, dimensions) = (domains.first(), domains.first().dimensions());
        let geometry = geometry(&dataset, &domains, &chosen)?;
        let (placing, channel_stack) = placing(arguments, &dataset, &geometry[0], windows)?;
        if arguments.stack_channels || !arguments.normalize.is_empty() {
            check_same_channels(&dataset, &domains, &geometry)?;
        }
        let is_separate = domains.is_separate();
        let places = Places { windows, geometry: &geometry[0], placing: &placing, is_separate };
        let conversions = conversions(&dataset, arguments, &places)?;
        if arguments.stack {
            check_stack(&dataset, &geometry[0], &conversions)?;
        }
        if arguments.stack_channels {
            channel_stack::check_types(&dataset, &conversions)?;
        }
        let parts = Arc::new(part_plans(&dataset, conversions, &options)?);
        let chosen = choice(arguments, &domains, &options)?;
        let choice_identity = chosen.identity.clone();
        let Ordered { order, order_bytes, reuse } =
            order(arguments, &options, &dataset, (&geometry, &domains), chosen)?;
        let (stacked, indexed) = (arguments.stack || arguments.stack_channels, arguments.return_index);
        let mut fingerprint = checkpoint::fingerprint(&dataset, &geometry, &domains, &order, stacked);
        if !choice_identity.is_null() {
            fingerprint["choice"] = choice_identity;
        }
        let identity = Identity { fingerprint, batch_size: options.batch_size, dimensions };
        let start = start(arguments, order, &identity)?;
        let first_sampled = geometry[0].iter().position(ArrayGeometry::follows_samples).unwrap_or(reference);
        let channel_shape = channel_stack.as_ref().map(|stack| &stack.shape[..]);
        let stacking = match (arguments.stack, channel_shape) {
            (true, _) => Stacking::Arrays,
            (false, Some(shape)) => Stacking::Channels { shape, reference: first_sampled },
            (false, None) => Stacking::None,
        };
        let outputs = outputs(&dataset, &domains, &geometry[0], &parts, stacking, indexed);
        Ok(Self {
            dataset,
            domains,
            geometry,
            placing,
            parts,
            outputs,
            stacked,
            first_sampled,
            channels: channel_stack.map_or(Value::Null, |stack| stack.channels),
            indexed,
            reuse,
            order_bytes,
            start,
            identity,
            options,
        })
    }

    /// Bytes of all outputs of a batch.
    pub fn batch_bytes(&self) -> u64 {
        let sample = self.outputs.iter().fold(0u64, |all, output| all.saturating_add(output.sample_bytes()));
        sample.saturating_mul(self.options.batch_size)
    }

    /// Every part of every array with its plan.
    pub fn planned_parts(&self) -> impl Iterator<Item = (&ArrayInfo, &PartPlan)> {
        self.dataset.arrays.iter().flat_map(|array| &array.parts).zip(self.parts.iter())
    }

    /// Threads that only read.
    pub fn io_threads(&self) -> usize {
        let read_only = self.parts.iter().any(|plan| plan.placement != Placement::Cpu);
        if read_only { self.options.io_threads } else { 0 }
    }

    /// Threads that decode on the CPU, if memory allows.
    pub fn decode_threads(&self) -> usize {
        let on_cpu = |placement| {
            placement == Placement::Cpu
                || (placement == Placement::Either && self.options.decode == Decode::Auto)
        };
        if self.parts.iter().any(|plan| on_cpu(plan.placement)) { self.options.decode_threads } else { 0 }
    }

    /// Whether cuFile is to read, if it can be used.
    pub fn reads_with_cufile(&self) -> bool {
        self.chooses_cufile(Driver::reads_directly())
    }

    /// The same for a machine where cuFile reads directly to the GPU, or through the host.
    fn chooses_cufile(&self, directly: bool) -> bool {
        match self.options.io {
            Io::Posix => false,
            Io::Gds => true,
            // Through the host it is slower than the page cache: 35 GB/s of zstd in place of 55 (H100, compatibility mode, 2026-11-27).
            // Whether encoded chunks gain where it reads directly has not been measured.
            Io::Auto => {
                let has = |placement| self.parts.iter().any(|plan| plan.placement == placement);
                directly && has(Placement::Uncompressed) && !has(Placement::Either)
            }
        }
    }

    /// The most boxes of a chunk that one group of a GPU worker assembles: all boxes that a batch can have in it, and at least 16,
    /// because several batches may wait for the chunk.
    pub fn boxes_of_chunk(&self) -> u64 {
        const LEAST: u64 = 16;
        // Offsets that are no regular sequence make several boxes of one sample, and so do chosen indices: of stores that are read
        // separately each may have another part of these in its region.
        let of_store = |(domain, geometry): (&Domain, &Vec<ArrayGeometry>)| {
            let of = |(array, placing): (&ArrayGeometry, &OutputGeometry)| {
                array.boxes(&domain.windows).saturating_mul(placing.repeats)
            };
            geometry.iter().zip(&*self.placing).map(of).max().unwrap_or(1)
        };
        let boxes = self.domains.iter().zip(&*self.geometry).map(of_store).max().unwrap_or(1);
        self.options.batch_size.saturating_mul(boxes).max(LEAST)
    }

    /// Logs the decode path of each array, once per process.
    pub(super) fn log_decode_paths(&self) {
        for (array, plans) in self.dataset.arrays.iter().zip(self.parts.arrays()) {
            // Of joined stores only the first, and each whose decode path differs from the store before it.
            for (number, (part, plan)) in array.parts.iter().zip(plans).enumerate() {
                if number == 0 || plan.decode_path != plans[number - 1].decode_path {
                    log_once(&format!("{}: {}", part.context(), plan.decode_path));
                }
            }
        }
    }
}

/// Where the windows of each domain lie in each array. `chosen`: what is selected of each dimension of each array.
fn geometry(
    dataset: &Dataset,
    domains: &Domains,
    chosen: &[Vec<Option<Arc<[Run]>>>],
) -> Result<Arc<Geometry>> {
    let of_domain = |domain: &Domain| {
        let axes = domain.windows.axes().len();
        let arrays = dataset.arrays.iter().zip(chosen);
        let geometry = arrays.map(|(array, chosen)| ArrayGeometry {
            chosen: chosen.clone(),
            ..array.geometry(domain.store, axes)
        });
        geometry.collect::<Vec<_>>()
    };
    let geometry: Arc<Geometry> = domains.iter().map(of_domain).collect();
    check_shapes(dataset, domains, &geometry, dataset.reference)?;
    for (domain, geometry) in domains.iter().zip(&*geometry) {
        check_selected(dataset, geometry, dataset.reference, &domain.windows)?;
    }
    Ok(geometry)
}

/// Where each array lies in its output, and the channels that the arrays are stacked to, if they are.
fn placing(
    arguments: &Arguments,
    dataset: &Dataset,
    geometry: &[ArrayGeometry],
    windows: &Windows,
) -> Result<(Arc<[OutputGeometry]>, Option<ChannelStack>)> {
    if arguments.stack_channels {
        if arguments.stack {
            let problem = "`stack` stacks the arrays in another way; give one of them";
            return Err(argument("stack_channels", problem.into()));
        }
        let stack = ChannelStack::new(dataset, geometry, windows)?;
        return Ok((stack.placing.clone().into(), Some(stack)));
    }
    let place = |(number, geometry): (usize, &ArrayGeometry)| {
        let extents = geometry.sample_extents(windows);
        match arguments.stack {
            true => OutputGeometry::stacked(number, dataset.arrays.len(), &extents),
            false => OutputGeometry::alone(number, &extents),
        }
    };
    Ok((geometry.iter().enumerate().map(place).collect(), None))
}

/// The beginning of the order of samples, or the position that a checkpoint holds.
fn start(arguments: &Arguments, order: Order, identity: &Identity) -> Result<Cursor> {
    let start = Cursor { order, seed: arguments.seed, batch: 0 };
    if arguments.position.is_empty() {
        return Ok(start);
    }
    start.restore(identity, arguments.position.as_bytes()).map_err(|error| match error {
        Error::Checkpoint { problem } => argument("position", problem),
        error => error,
    })
}

/// A plan for each part of each array.
fn part_plans(dataset: &Dataset, conversions: Vec<Vec<Conversion>>, options: &Options) -> Result<PartPlans> {
    let plan = |(part, conversion): (&ArrayInfo, Conversion)| {
        let decode_path = decode_path(part, options)?;
        Ok(PartPlan::new(part, decode_path, conversion, options.device.is_some()))
    };
    let arrays = dataset.arrays.iter().zip(conversions);
    let plans = arrays.map(|(array, conversions)| array.parts.iter().zip(conversions).map(plan).collect());
    Ok(PartPlans::new(plans.collect::<Result<_>>()?))
}

/// Chooses the decode path of an array's read chunks on the backend and with the `decode` of the options.
///
/// # Errors
/// Arrays that this backend cannot read, or not as `decode` wants it.
pub fn decode_path(array: &ArrayInfo, options: &Options) -> Result<DecodePath> {
    if options.device.is_none() {
        return Ok(DecodePath::Cpu("the CPU backend".into()));
    }
    if array.read_chunk_bytes() > device::MAX_CHUNK_BYTES {
        let reason = format!(
            "its read chunks decode to {} bytes, and at most {} are supported",
            array.read_chunk_bytes(),
            device::MAX_CHUNK_BYTES
        );
        return Err(Error::NotOnGpu { at: array.context(), reason });
    }
    match (options.decode, codec::decode_path(array)) {
        (Decode::Cpu, _) => Ok(DecodePath::Cpu("decode=\"cpu\"".into())),
        (Decode::Gpu, DecodePath::Cpu(reason)) => Err(Error::NotOnGpu { at: array.context(), reason }),
        (_, decode_path) => Ok(decode_path),
    }
}

/// The order of samples, and what follows from it.
struct Ordered {
    order: Order,
    order_bytes: u64,
    reuse: ChunkReuse,
}

/// Decides the order of samples.
fn order(
    arguments: &Arguments,
    options: &Options,
    dataset: &Dataset,
    (geometry, domains): (&Geometry, &Domains),
    chosen: Chosen,
) -> Result<Ordered> {
    let Chosen { choice, repeats, .. } = chosen;
    let visiting = match arguments.random_shuffle {
        true => Visiting::Shuffled { repeats },
        false if choice.listed.is_some() => Visiting::AsListed { repeats },
        false => Visiting::InOrder { batch_size: options.batch_size },
    };
    let sharing = ChunkSharing::new(dataset, geometry, domains, visiting, options)?;
    let shuffle = arguments.random_shuffle.then(|| {
        let bytes = options.shuffle_bytes().saturating_sub(sharing.shuffle_reserve(options.shuffle_bytes()));
        let bytes = bytes / Setup::SHUFFLE_SHARE.1 * Setup::SHUFFLE_SHARE.0;
        let groups = sharing.groups.clone().map(|groups| {
            let counts = choice.listed.as_ref().map(|listed| groups.count_of(listed));
            let per_pass = if choice.weights.is_some() {
                choice.per_epoch(domains.len())
            } else {
                choice.len(domains.len())
            };
            let used = counts.as_ref().map(|counts| (per_pass, &counts[..]));
            let buffer =
                groups.buffer(&sharing.group_bytes, sharing.sample_bytes, bytes, options.initial_fill, used);
            (groups, buffer)
        });
        Shuffle { seed: arguments.seed as u64, groups }
    });
    let groups = shuffle.as_ref().and_then(|shuffle| shuffle.groups.as_ref());
    let groups = groups.map_or(0, |(groups, buffer)| groups.count(buffer.depth));
    // A border between reader shards can be in a group. Passes are not cut into reader shards.
    let shards = u64::try_from(arguments.num_shards).unwrap_or(1).max(1);
    let cuts = if choice.per_epoch.is_some() { 1 } else { shards };
    let groups = groups.min(groups.div_ceil(cuts) + 1);
    let groups = choice.listed.as_ref().map_or(groups, |listed| groups.min(listed.len() as u64));
    let lists = choice_bytes(&choice, domains.len(), arguments.random_shuffle);
    let order_bytes = Order::shuffle_bytes(groups).saturating_add(lists);
    check_order_bytes(order_bytes, groups, options)?;
    let order = Order::new(
        domains.len(),
        OrderArguments {
            shard_id: arguments.shard_id,
            num_shards: arguments.num_shards,
            stick_to_shard: arguments.stick_to_shard,
            pad_last_batch: arguments.pad_last_batch,
            batch_size: options.batch_size,
            shuffle,
            choice,
        },
    )?;
    Ok(Ordered { order, order_bytes, reuse: sharing.reuse })
}

#[cfg(test)]
mod tests {
    use super::super::memory_needs::tests::{ZSTD, write_array};
    use super::*;

    #[test]
    fn cufile_reads_by_itself_only_what_needs_no_look_at_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let chooses = |codecs: &str, io: &str, decode: &str, directly: bool| {
            write_array(folder.path(), [64, 1000], [1, 1000], codecs);
            let mut arguments = Arguments::new(folder.path().to_str().unwrap());
            (arguments.io, arguments.decode) = (io.into(), decode.into());
            (arguments.batch_size, arguments.device_id) = (16, 0);
            Setup::new(&arguments).unwrap().chooses_cufile(directly)
        };
        assert!(chooses("", "auto", "auto", true) && !chooses("", "auto", "auto", false));
        for decode in ["auto", "gpu", "cpu"] {
            assert!(!chooses(ZSTD, "auto", decode, true), "{decode}");
            assert!(chooses(ZSTD, "gds", decode, false) && !chooses(ZSTD, "posix", decode, true), "{decode}");
        }
    }
}
