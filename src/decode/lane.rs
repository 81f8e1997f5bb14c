//! The GPU side: a lane is a thread with a stream and a piece of device memory, and takes groups of fetched units.
//!
//! ```text
//! host    pinned chunk, pinned chunk, ...        staging (pointers, sizes, regions)
//!            | copy                                  | copy
//! arena   [encoded chunks][decoded chunks][scratch][staging]
//!            '---- nvCOMP, one call ----^'----- gather, one launch -----> outputs of the batches
//! ```
//!
//! A group is whatever waits when a lane becomes free, as far as it fits into the lane's arena; its units may belong
//! to several batches. nvCOMP takes about as long for one chunk as for hundreds, so groups grow by themselves as the
//! load does, and several lanes overlap copies, decoding and the host's part.

use super::Queue;
use crate::assemble::device::{Region, Regions, Source, repeated};
use crate::batch::Unit;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result};
use crate::gpu::{DeviceMemory, Gpu, Kernels, PinnedBuffer, PinnedMemory};

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, result};
use nvcomp_sys::{Nvcomp, nvcompBatchedZstdDecompressOpts_t, nvcompStatus_t, nvcompSuccess};

/// A unit whose bytes are in pinned memory.
pub struct Fetched {
    /// The unit.
    pub unit: Unit,
    /// Its bytes.
    pub payload: Payload,
    /// Its place, for errors.
    pub at: Context,
}

/// What was fetched for a unit.
pub enum Payload {
    /// Nothing: the fill value is meant.
    Missing,
    /// A decoded read chunk.
    Plain {
        /// Its elements.
        buffer: PinnedBuffer,
        /// They are in the other byte order.
        swaps_bytes: bool,
    },
    /// A read chunk as one zstd frame whose headers were checked.
    Zstd {
        /// The frame.
        buffer: PinnedBuffer,
        /// The elements in it are in the other byte order.
        swaps_bytes: bool,
    },
}

/// What all lanes of a reader share.
pub struct Lanes {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Its kernels.
    pub kernels: Kernels,
    /// The decoder, if any array needs it.
    pub nvcomp: Option<Zstd>,
    /// What is read.
    pub dataset: Arc<Dataset>,
    /// Work.
    pub queue: Arc<Queue<Fetched>>,
}

/// nvCOMP's zstd decoder.
pub struct Zstd {
    nvcomp: Nvcomp,
}

const _: () =
    assert!(DeviceMemory::ALIGNMENT as usize >= nvcomp_sys::nvcompZstdRequiredDecompressionAlignment);

/// Arena bytes of a unit's entries in the staging area, apart from its regions: two pointers, three sizes, a status,
/// and what aligning them may cost.
const STAGING_BYTES: u64 = 64;
/// What aligning the parts of a whole arena may cost.
const ARENA_SLACK: u64 = 16 << 10;

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(DeviceMemory::ALIGNMENT)
}

fn aligned_down(address: u64) -> u64 {
    address - address % DeviceMemory::ALIGNMENT
}

impl Zstd {
    /// Loads nvCOMP.
    ///
    /// # Errors
    /// What the loader says.
    pub fn open() -> std::result::Result<Self, nvcomp_sys::LoadError> {
        Ok(Self { nvcomp: nvcomp_sys::open()? })
    }

    /// What a call with `chunks` chunks of at most `largest` and together `total` decoded bytes usually needs as scratch
    /// memory, for forming groups. Not a bound: nvCOMP 5.3 assumes fewer sequences than zstd makes at level 19 (measured:
    /// 877,872 bytes promised and 888,368 needed for a chunk of 288,000, which ended the CUDA context), so that [`Lane::decompress`] asks again with the chunks at hand.
    fn usual_scratch_bytes(&self, chunks: u64, largest: u64, total: u64) -> Result<u64> {
        let mut bytes = 0;
        let options = nvcompBatchedZstdDecompressOpts_t::default();
        // SAFETY: writes to a live value; does not touch the device.
        let status = unsafe {
            self.nvcomp.nvcompBatchedZstdDecompressGetTempSizeAsync(
                chunks as usize,
                largest as usize,
                options,
                &mut bytes,
                total as usize,
            )
        };
        self.check("nvcompBatchedZstdDecompressGetTempSizeAsync", status)?;
        Ok(bytes as u64)
    }

    fn check(&self, operation: &'static str, status: nvcompStatus_t) -> Result<()> {
        if status == nvcompSuccess {
            return Ok(());
        }
        Err(Error::NvcompCall { operation, status: self.nvcomp.status_text(status) })
    }
}

/// Arena bytes that a unit of an array needs with up to `boxes` boxes, alone in a group. Groups need at most the sum.
///
/// # Errors
/// What nvCOMP says.
pub fn unit_bytes(zstd: Option<&Zstd>, array: &ArrayInfo, boxes: u64) -> Result<u64> {
    let decoded = array.read_chunk_bytes();
    let encoded_bound = crate::codec::zstd::encoded_bound(decoded);
    let scratch = zstd.map_or(Ok(0), |zstd| zstd.usual_scratch_bytes(1, decoded, decoded))?;
    let scratch =
        if zstd.is_some() { scratch.max(crate::codec::zstd::gpu_scratch_bound(decoded)) } else { 0 };
    let regions = boxes * size_of::<Region>() as u64;
    Ok(aligned(decoded)
        + zstd.map_or(0, |_| aligned(encoded_bound))
        + aligned(scratch)
        + STAGING_BYTES
        + regions
        + ARENA_SLACK)
}

/// Sizes of the parts of an arena.
#[derive(Clone, Copy, Default)]
struct Sizes {
    encoded: u64,
    decoded: u64,
    staging: u64,
    zstd_chunks: u64,
    zstd_largest: u64,
    zstd_total: u64,
}

impl Sizes {
    fn with(mut self, fetched: &Fetched, array: &ArrayInfo) -> Self {
        let decoded = array.read_chunk_bytes();
        match &fetched.payload {
            Payload::Missing => {}
            Payload::Plain { .. } => self.decoded += aligned(decoded),
            Payload::Zstd { buffer, .. } => {
                self.decoded += aligned(decoded);
                self.encoded += aligned(buffer.bytes().len() as u64);
                self.zstd_chunks += 1;
                self.zstd_largest = self.zstd_largest.max(decoded);
                self.zstd_total += decoded;
            }
        }
        let regions: u64 = fetched.unit.task.boxes.iter().map(Regions::count).sum();
        self.staging += STAGING_BYTES + regions * size_of::<Region>() as u64;
        self
    }

    fn scratch(&self, zstd: Option<&Zstd>) -> Result<u64> {
        match zstd {
            Some(zstd) if self.zstd_chunks > 0 => {
                zstd.usual_scratch_bytes(self.zstd_chunks, self.zstd_largest, self.zstd_total)
            }
            _ => Ok(0),
        }
    }

    fn arena_bytes(&self, scratch: u64) -> u64 {
        self.encoded + self.decoded + self.staging + aligned(scratch) + ARENA_SLACK
    }
}

/// What a lane works on, for those who wait for it.
#[derive(Default)]
pub struct Pulse(Mutex<Option<Busy>>);

struct Busy {
    since: Instant,
    first: Context,
    chunks: usize,
}

impl Pulse {
    /// No sound group takes nearly as long: a call with 48 chunks of 3.28 MB took 0.03 s (H200, 2026-11-20).
    const LIMIT: Duration = Duration::from_secs(60);

    fn set(&self, busy: Option<Busy>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = busy;
    }

    /// An error if the lane's group does not come to an end.
    pub fn stuck(&self) -> Option<Error> {
        let busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = busy.as_ref().filter(|busy| busy.since.elapsed() > Self::LIMIT)?;
        Some(Error::GpuStuck {
            at: busy.first.clone(),
            chunks: busy.chunks,
            seconds: busy.since.elapsed().as_secs(),
        })
    }
}

/// One lane.
pub struct Lane {
    /// What it works on.
    pub pulse: Arc<Pulse>,
    lanes: Arc<Lanes>,
    stream: Arc<CudaStream>,
    arena: DeviceMemory,
    staging: Option<PinnedMemory>,
    copied: CudaEvent,
    done: CudaEvent,
}

impl Lane {
    /// A lane with an arena of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(lanes: Arc<Lanes>, arena_bytes: u64) -> Result<Self> {
        Ok(Self {
            pulse: Arc::default(),
            stream: lanes.gpu.stream()?,
            arena: DeviceMemory::new(&lanes.gpu, arena_bytes)?,
            staging: None,
            copied: lanes.gpu.event()?,
            done: lanes.gpu.event()?,
            lanes,
        })
    }

    /// Waits for the next group and processes it. False once the queue is closed.
    pub fn step(&mut self) -> bool {
        let Some(mut group) = self.take() else { return false };
        let first = group[0].at.clone();
        self.pulse.set(Some(Busy { since: Instant::now(), first, chunks: group.len() }));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if let Err(error) = self.process(&mut group) {
                fail_all(&group, error);
            }
        }));
        if let Err(payload) = panicked {
            fail_all(&group, Error::panic("a GPU lane", &*payload));
        }
        self.pulse.set(None);
        true
    }

    fn array(&self, fetched: &Fetched) -> &ArrayInfo {
        let task = &fetched.unit.task;
        self.lanes.dataset.part(task.array, task.part)
    }

    /// Takes as many waiting units as the arena holds.
    fn take(&self) -> Option<Vec<Fetched>> {
        let zstd = self.lanes.nvcomp.as_ref();
        let mut sizes = Sizes::default();
        self.lanes.queue.pop_group(|fetched| {
            let more = sizes.with(fetched, self.array(fetched));
            // An error of nvCOMP's comes back when the group is laid out, where it can be reported.
            let scratch = more.scratch(zstd).unwrap_or(0);
            let fits = more.arena_bytes(scratch) <= self.arena.bytes();
            if fits || sizes.staging == 0 {
                sizes = more;
            }
            fits
        })
    }

    /// Copies, decodes and gathers a group, and waits for it. On the way out nothing of it is in flight any more,
    /// however it ends, so that its buffers may go.
    fn process(&mut self, group: &mut [Fetched]) -> Result<()> {
        let results = match self.enqueue(group) {
            Ok(results) => results,
            Err(error) => {
                // What was enqueued before the error still reads the group's buffers. If even this fails, the context
                // is broken and nothing runs any more.
                let _ = self.stream.synchronize();
                return Err(error);
            }
        };
        let copied = self.copied.synchronize();
        if copied.is_ok() {
            // Long before the group is decoded, its pinned memory can take the next chunks.
            group.iter_mut().for_each(|fetched| fetched.payload = Payload::Missing);
        }
        let done = self.done.synchronize();
        copied.and(done).map_err(Error::cuda("decoding a group of chunks"))?;
        self.report(group, &results);
        Ok(())
    }

    /// Enqueues everything that a group needs.
    fn enqueue(&mut self, group: &[Fetched]) -> Result<Results> {
        let lanes = self.lanes.clone();
        lanes.gpu.bind()?;
        let mut sizes = Sizes::default();
        for fetched in group {
            sizes = sizes.with(fetched, self.array(fetched));
        }
        let scratch_bytes = sizes.scratch(lanes.nvcomp.as_ref())?;
        if sizes.arena_bytes(scratch_bytes) > self.arena.bytes() {
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: self.arena.bytes(),
                needed_bytes: sizes.arena_bytes(scratch_bytes),
                what: "one chunk while it is decoded".into(),
            });
        }

        // The parts of the arena, one behind the other.
        let mut encoded = self.arena.address();
        let mut decoded = encoded + sizes.encoded;
        let scratch = decoded + sizes.decoded;
        // At the end of the arena, so that the scratch memory has all that is left. The arena may be of any size.
        let end = self.arena.address() + self.arena.bytes();
        let staging = aligned_down(end - sizes.staging - ARENA_SLACK / 2);

        let mut chunks = ZstdArrays::default();
        let mut regions = Regions::default();
        for (number, fetched) in group.iter().enumerate() {
            let task = &fetched.unit.task;
            let array = lanes.dataset.part(task.array, task.part);
            let output = fetched.unit.batch.outputs[task.output].address;
            let chunk_bytes = array.read_chunk_bytes();
            let source = match &fetched.payload {
                Payload::Missing => Source::Fill(repeated(array.fill_element().unwrap_or_default())),
                Payload::Plain { buffer, swaps_bytes } => {
                    self.copy(decoded, buffer.bytes())?;
                    let source = Source::Decoded { address: decoded, swaps_bytes: *swaps_bytes };
                    decoded += aligned(chunk_bytes);
                    source
                }
                Payload::Zstd { buffer, swaps_bytes } => {
                    let bytes = buffer.bytes();
                    self.copy(encoded, bytes)?;
                    chunks.push(number, encoded, bytes.len() as u64, decoded, chunk_bytes);
                    encoded += aligned(bytes.len() as u64);
                    let source = Source::Decoded { address: decoded, swaps_bytes: *swaps_bytes };
                    decoded += aligned(chunk_bytes);
                    source
                }
            };
            regions.add(source, &task.boxes, array.stored.size_bytes(), output);
        }

        let mut builder = Staging { bytes: vec![], device: staging };
        let zstd = ZstdOnDevice {
            first: 0,
            count: chunks.encoded.len(),
            largest: sizes.zstd_largest,
            encoded: builder.put(&chunks.encoded),
            encoded_bytes: builder.put(&chunks.encoded_bytes),
            decoded: builder.put(&chunks.decoded),
            decoded_bytes: builder.put(&chunks.decoded_bytes),
            actual_bytes: builder.put(&vec![0u64; chunks.encoded.len()]),
            statuses: builder.put(&vec![0u32; chunks.encoded.len()]),
        };
        let region_list = builder.put(regions.list());
        self.upload(&builder.bytes, staging)?;
        self.copied.record(&self.stream).map_err(Error::cuda("recording an event"))?;

        if let (Some(decoder), true) = (&lanes.nvcomp, zstd.count > 0) {
            self.decompress(decoder, &zstd, scratch..staging)?;
        }
        let mut waited_for: Vec<*const crate::batch::Batch> = vec![];
        for fetched in group {
            let batch = Arc::as_ptr(&fetched.unit.batch);
            if let (Some(writable), false) = (&fetched.unit.batch.writable, waited_for.contains(&batch)) {
                self.stream.wait(writable).map_err(Error::cuda("waiting for output memory"))?;
                waited_for.push(batch);
            }
        }
        // SAFETY: the regions were put into this lane's arena by the copy above; their sources lie in the arena, their
        // destinations in outputs that stay until their units are finished, which is after `process` waited.
        unsafe { lanes.kernels.gather(&self.stream, region_list, regions.list().len(), regions.tiles())? };

        let results = self.download(&zstd, chunks.units, builder.bytes.len())?;
        self.done.record(&self.stream).map_err(Error::cuda("recording an event"))?;
        Ok(results)
    }

    /// Enqueues a copy from pinned memory.
    fn copy(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the source is pinned memory of the group, which `process` keeps until the stream has passed; the
        // destination lies within the arena, as `enqueue` has checked for the sum of all parts.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying a chunk to the GPU"))
    }

    /// Copies pointers, sizes and regions to the device, through pinned memory of this lane. Keeps room behind them
    /// for what comes back.
    fn upload(&mut self, bytes: &[u8], to: u64) -> Result<()> {
        let wanted = bytes.len() * 2;
        if self.staging.as_ref().is_none_or(|staging| staging.bytes() < wanted) {
            self.staging =
                Some(PinnedMemory::new(&self.lanes.gpu, wanted.next_power_of_two().max(64 << 10))?);
        }
        let Some(staging) = &self.staging else { return Ok(()) };
        // SAFETY: the staging memory is at least that long and belongs to this lane, whose last group was waited for.
        let staged = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), staging.address(), bytes.len());
            std::slice::from_raw_parts(staging.address(), bytes.len())
        };
        // SAFETY: as in `copy`; the staging memory stays until the lane's next group.
        unsafe { result::memcpy_htod_async(to, staged, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying the work list to the GPU"))
    }

    /// Enqueues the decoding of chunks, in as many calls as the scratch memory asks for. Waits for the copies of the
    /// chunks, because nvCOMP looks at them to say what it needs; this took 0.05 ms for 48 chunks (H200, 2026-11-20).
    fn decompress(&self, decoder: &Zstd, chunks: &ZstdOnDevice, scratch: Range<u64>) -> Result<()> {
        let room = scratch.end - scratch.start;
        let nvcomp = &decoder.nvcomp;
        let options = nvcompBatchedZstdDecompressOpts_t::default();
        let stream = self.stream.cu_stream().cast();
        let mut needed = 0;
        // SAFETY: the arrays have an entry for each chunk in the arena, put there by the copy that precedes this on the
        // stream; nvCOMP waits for the stream before it returns.
        let status = unsafe {
            nvcomp.nvcompBatchedZstdDecompressGetTempSizeSync(
                chunks.at(chunks.encoded) as *const _,
                chunks.at(chunks.encoded_bytes) as *const _,
                chunks.count,
                chunks.largest as usize,
                &mut needed,
                chunks.largest as usize * chunks.count,
                options,
                std::ptr::null_mut(),
                stream,
            )
        };
        decoder.check("nvcompBatchedZstdDecompressGetTempSizeSync", status)?;
        if needed as u64 > room {
            if chunks.count > 1 {
                let (front, back) = chunks.halves();
                self.decompress(decoder, &front, scratch.clone())?;
                return self.decompress(decoder, &back, scratch);
            }
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: room,
                needed_bytes: needed as u64,
                what: "nvCOMP's scratch memory for one chunk".into(),
            });
        }
        // SAFETY: as above; each chunk has the room that its entry says, and the scratch memory is what nvCOMP asked
        // for. Calls that share it follow one another on the stream.
        let status = unsafe {
            nvcomp.nvcompBatchedZstdDecompressAsync(
                chunks.at(chunks.encoded) as *const _,
                chunks.at(chunks.encoded_bytes) as *const _,
                chunks.at(chunks.decoded_bytes) as *const _,
                chunks.at(chunks.actual_bytes) as *mut _,
                chunks.count,
                scratch.start as *mut _,
                needed,
                chunks.at(chunks.decoded) as *const _,
                options,
                (chunks.statuses + (chunks.first * size_of::<nvcompStatus_t>()) as u64) as *mut _,
                stream,
            )
        };
        decoder.check("nvcompBatchedZstdDecompressAsync", status)
    }

    /// Enqueues the way back of sizes and statuses, into the second half of the staging memory.
    fn download(&self, chunks: &ZstdOnDevice, units: Vec<usize>, offset: usize) -> Result<Results> {
        let count = chunks.count;
        let Some(staging) = self.staging.as_ref().filter(|_| count > 0) else {
            return Ok(Results::default());
        };
        let offset = offset.next_multiple_of(8);
        // SAFETY: `upload` made the staging memory twice as long as its contents, of which these are a part.
        let (sizes, statuses) = unsafe {
            let sizes = staging.address().add(offset).cast::<u64>();
            (sizes, sizes.add(count).cast::<nvcompStatus_t>())
        };
        for (from, to, bytes) in [
            (chunks.actual_bytes, sizes.cast::<u8>(), count * size_of::<u64>()),
            (chunks.statuses, statuses.cast(), count * size_of::<nvcompStatus_t>()),
        ] {
            // SAFETY: as above; nothing reads the memory before `report`, which comes after the wait.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to, bytes);
                result::memcpy_dtoh_async(to, from, self.stream.cu_stream())
            }
            .map_err(Error::cuda("copying the decoder's results back"))?;
        }
        Ok(Results { units, sizes, statuses })
    }

    /// Fails the units whose chunks nvCOMP did not decode as it should.
    fn report(&self, group: &[Fetched], results: &Results) {
        let Some(zstd) = &self.lanes.nvcomp else { return };
        for (i, &unit) in results.units.iter().enumerate() {
            let fetched = &group[unit];
            // SAFETY: both arrays have an entry for each unit in the lane's staging memory, and the copies into them
            // have ended.
            let (bytes, status) = unsafe { (*results.sizes.add(i), *results.statuses.add(i)) };
            let expected = self.array(fetched).read_chunk_bytes();
            let at = || fetched.at.clone();
            if let Err(error) = zstd.check("zstd decoder", status) {
                let source = match error {
                    Error::NvcompCall { status, .. } => status.into(),
                    other => other.into(),
                };
                fetched.unit.batch.fail(Error::Decode { at: at(), source });
            } else if bytes != expected {
                let problem = format!("the zstd frame decodes to {bytes} bytes instead of {expected}");
                fetched.unit.batch.fail(Error::Damaged { at: at(), problem });
            }
        }
    }
}

/// An error of a whole group: the first batch gets it, the others its text.
fn fail_all(group: &[Fetched], error: Error) {
    let error = Arc::new(error);
    for fetched in group {
        if !fetched.unit.batch.failed() {
            fetched.unit.batch.fail(Error::Sticky(error.clone()));
        }
    }
}

/// What nvCOMP wants to know of a group's chunks.
#[derive(Default)]
struct ZstdArrays {
    /// Which units of the group.
    units: Vec<usize>,
    encoded: Vec<u64>,
    encoded_bytes: Vec<u64>,
    decoded: Vec<u64>,
    decoded_bytes: Vec<u64>,
}

impl ZstdArrays {
    fn push(&mut self, unit: usize, encoded: u64, encoded_bytes: u64, decoded: u64, decoded_bytes: u64) {
        self.units.push(unit);
        self.encoded.push(encoded);
        self.encoded_bytes.push(encoded_bytes);
        self.decoded.push(decoded);
        self.decoded_bytes.push(decoded_bytes);
    }
}

/// The same on the device: addresses of arrays, of which `count` entries from `first` on are meant.
#[derive(Clone, Copy)]
struct ZstdOnDevice {
    first: usize,
    count: usize,
    /// Decoded bytes of the largest chunk.
    largest: u64,
    encoded: u64,
    encoded_bytes: u64,
    decoded: u64,
    decoded_bytes: u64,
    actual_bytes: u64,
    statuses: u64,
}

impl ZstdOnDevice {
    /// Address of the first meant entry of an array of 8-byte entries.
    fn at(&self, array: u64) -> u64 {
        array + self.first as u64 * 8
    }

    fn halves(&self) -> (Self, Self) {
        let front = self.count / 2;
        (
            Self { count: front, ..*self },
            Self { first: self.first + front, count: self.count - front, ..*self },
        )
    }
}

/// Where nvCOMP's results arrive: a size and a status for each of `units`, in the lane's staging memory.
struct Results {
    units: Vec<usize>,
    sizes: *const u64,
    statuses: *const nvcompStatus_t,
}

impl Default for Results {
    fn default() -> Self {
        Self { units: vec![], sizes: std::ptr::null(), statuses: std::ptr::null() }
    }
}

/// Collects small arrays that go to the device in one copy.
struct Staging {
    bytes: Vec<u8>,
    device: u64,
}

/// Plain data that may be copied to the device byte by byte.
trait Plain: Copy {}
impl Plain for u64 {}
impl Plain for u32 {}
impl Plain for Region {}

impl Staging {
    /// Adds an array; returns its address on the device.
    fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let address = self.device + self.bytes.len() as u64;
        // SAFETY: `Plain` types have no padding and no invalid bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        self.bytes.extend_from_slice(bytes);
        address
    }
}
