//! What a worker thread does with a chunk: find its bytes, read them, decode them where that is the CPU's part, and send
//! them to where they are decoded or belong.

use super::chunk::{Cached, Chunk};
use super::device_pool::{Allocation, DevicePool};
use super::gpu_worker::{self, GpuTask, OnDevice, Payload};
use super::jobs::Jobs;
use super::part::PartPlans;
use super::prefetch::{self, Prefetcher};
use super::upload::{OnComplete, Uploader};
use super::verified::Identity;
use crate::assemble::host::{self, Source};
use crate::assemble::{self, Conversion};
use crate::batch::{Batch, PendingUnit, PendingUnits, Times};
use crate::codec::{self, DecodePath, GpuChain, Prepared, Unpacker, Work};
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result, log_once};
use crate::fetch::cufile::Handle;
use crate::fetch::{Blob, Located, Locator};
use crate::gpu::{PinnedBuffer, PinnedPool};
use crate::memory::{self, Refused};
use crate::options::MissingChunks;
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

/// What all workers of a reader share.
pub struct WorkerContext {
    /// What is read.
    pub dataset: Arc<Dataset>,
    /// How its chunks are decoded.
    pub parts: Arc<PartPlans>,
    /// Finds chunks.
    pub locator: Locator,
    /// What will be read.
    pub prefetcher: Arc<Prefetcher>,
    /// What a missing chunk means.
    pub missing_chunks: MissingChunks,
    /// The host memory that the reader may use: shards that are decoded whole are no longer than that.
    pub host_memory_bytes: u64,
    /// Where finished work goes.
    pub target: Target,
    /// What is counted.
    pub counters: Arc<Counters>,
}

/// Where encoded bytes are.
type Place = (Arc<dyn Blob>, Range<u64>);

/// Where workers put what they have read.
pub enum Target {
    /// Into the outputs, in host memory.
    Host,
    /// To the GPU.
    GpuWorkerContext {
        /// Device memory for chunks that are not where they belong yet.
        upload_pool: Arc<DevicePool>,
        /// Boxes of a chunk that one group of a GPU worker assembles at most, unless a single unit has more.
        most_boxes: usize,
        /// Who knows whether there is time.
        jobs: Arc<Jobs>,
    },
}

/// What a worker thread has for itself.
pub struct WorkerState {
    scratch: Scratch,
    /// GPU backend: its way there.
    sender: Option<Uploader>,
    /// Whether it decodes what the GPU could.
    decodes: bool,
}

/// Memory that is used again and again.
#[derive(Default)]
struct Scratch {
    encoded: Vec<u8>,
    decoded: Vec<u8>,
    unpacker: Unpacker,
}

impl WorkerState {
    /// Those of a thread that decodes or not.
    pub fn new(decodes: bool) -> Self {
        Self { scratch: Scratch::default(), sender: None, decodes }
    }

    /// Gives it a way to the GPU.
    pub fn send_with(&mut self, sender: Uploader) {
        self.sender = Some(sender);
    }

    /// Finishes what is on its way, because nothing follows for now.
    pub fn rest(&mut self) {
        self.sender.iter_mut().for_each(Uploader::complete_all);
    }
}

/// What a worker does.
pub enum Job {
    /// Read a chunk, and decode it where that is the CPU's part.
    Read(Arc<Chunk>),
    /// CPU backend: assemble a unit from a chunk that is there. Units are large, and there may be many jobs.
    Assemble(Arc<Chunk>, Box<PendingUnit>),
}

impl Job {
    /// The chunk, if it is to be read.
    pub fn read(&self) -> Option<&Arc<Chunk>> {
        match self {
            Self::Read(chunk) => Some(chunk),
            Self::Assemble(..) => None,
        }
    }

    /// The chunk.
    pub fn chunk(&self) -> &Arc<Chunk> {
        match self {
            Self::Read(chunk) | Self::Assemble(chunk, _) => chunk,
        }
    }
}

impl WorkerContext {
    /// Does one job. Whether it decoded a chunk.
    pub fn process(&self, job: Job, state: &mut WorkerState) -> bool {
        let chunk = match job {
            Job::Assemble(chunk, unit) => {
                self.assemble_held(&chunk, &unit);
                return false;
            }
            Job::Read(chunk) => chunk,
        };
        if chunk.is_abandoned() {
            return false;
        }
        self.look_ahead();
        let done = match &self.target {
            Target::Host => self.decode_and_assemble(&chunk, state),
            Target::GpuWorkerContext { upload_pool, most_boxes, jobs } => {
                let Some(sender) = state.sender.as_mut() else { return false };
                let decode_path = ChunkUpload {
                    workers: self,
                    chunk: &chunk,
                    array: self.array(&chunk),
                    upload_pool,
                    most_boxes: *most_boxes,
                    jobs,
                };
                let sent = decode_path.send(sender, &mut state.scratch, state.decodes);
                if sent.is_err() {
                    // Copies may be on their way to memory that is about to be given back.
                    sender.abort();
                }
                sent
            }
        };
        done.unwrap_or_else(|error| {
            chunk.fail(error);
            false
        })
    }

    /// Announces what will be read soon, if it is not in the page cache.
    fn look_ahead(&self) {
        for chunk in self.prefetcher.next_indexes() {
            self.locator.prefetch_index(chunk.place(), self.array(&chunk), &chunk.read_chunk);
        }
        let mut places = vec![];
        self.prefetcher.prefetch(|chunk| {
            // Errors come back when it is read.
            let place = self.locator.locate(chunk.place(), self.array(chunk), &chunk.read_chunk);
            let Ok((Located::At { blob, range }, at)) = place else { return None };
            let cached = blob.is_cached(&range);
            self.prefetcher.observe(cached);
            if cached {
                return None;
            }
            let bytes = range.end - range.start;
            self.counters.chunks_prefetched.add(1);
            let may_stay_open = blob.may_stay_open();
            // A shard is open anyway.
            if may_stay_open || Arc::strong_count(&blob) > 1 {
                places.push((blob.clone(), range.clone()));
            } else {
                blob.will_need(range.clone());
            }
            if may_stay_open {
                chunk.keep_place((Located::At { blob, range }, at));
            }
            Some(bytes)
        });
        for (blob, range) in prefetch::joined(places) {
            blob.will_need(range);
        }
    }

    fn array(&self, chunk: &Chunk) -> &ArrayInfo {
        self.dataset.part(chunk.key.array, chunk.key.part)
    }

    fn conversion(&self, chunk: &Chunk) -> &Conversion {
        &self.parts[chunk.place()].conversion
    }

    fn locate(&self, chunk: &Chunk) -> Result<(Option<Place>, Context)> {
        let (located, at) = match chunk.take_place() {
            Some(place) => place,
            None => {
                let place = self.locator.locate(chunk.place(), self.array(chunk), &chunk.read_chunk)?;
                if let Located::At { blob, range } = &place.0
                    && !self.prefetcher.is_active()
                    && !blob.is_cached(range)
                {
                    self.prefetcher.observe(false);
                }
                place
            }
        };
        match located {
            Located::At { blob, range } => {
                self.counters.chunks_read.add(1);
                self.counters.bytes_read.add(range.end - range.start);
                Ok((Some((blob, range)), at))
            }
            Located::Missing if self.missing_chunks == MissingChunks::Fill => {
                self.counters.chunks_missing.add(1);
                // Whether that is to be believed is asked here for a batch's first such chunk, and for all of them when it is
                // handed over.
                if chunk.note_absent() {
                    self.array(chunk).check_present()?;
                }
                Ok((None, at))
            }
            Located::Missing => {
                self.array(chunk).check_present()?;
                Err(Error::MissingChunk { at })
            }
        }
    }

    /// CPU backend: the whole decode path of a chunk. Whether it had to be decoded.
    fn decode_and_assemble(&self, chunk: &Chunk, state: &mut WorkerState) -> Result<bool> {
        let array = self.array(chunk);
        let bytes = array.read_chunk_bytes() as usize;
        let (observe, at) = self.locate(chunk)?;
        let mut times = Times::default();
        let mut read = |into: &mut [u8], (blob, range): &Place, scratch: &mut Scratch| -> Result<()> {
            times.fetched = Some(self.read_and_unpack(chunk, &**blob, range, into, scratch, &at)?);
            times.decoded = Some(Instant::now());
            Ok(())
        };
        let scratch = &mut state.scratch;
        if chunk.allocation().is_some() {
            let zeroed = || memory::zeroed(bytes as u64).map_err(no_memory(&at));
            let cached = match &observe {
                None if array.fill_element().is_some() => Cached::Missing,
                None => {
                    let mut filled = zeroed()?;
                    array.fill(&mut filled);
                    Cached::Host(filled.into())
                }
                Some(place) => {
                    let mut decoded = zeroed()?;
                    read(&mut decoded, place, scratch)?;
                    Cached::Host(decoded.into())
                }
            };
            for mut unit in chunk.ready(cached) {
                unit.times = times;
                self.assemble_held(chunk, &unit);
            }
            return Ok(observe.is_some());
        }
        // Without a room nobody else is added, and the units stay with the chunk until nothing can fail any more.
        if observe.is_none() && array.fill_element().is_some() {
            for unit in chunk.take(usize::MAX) {
                self.assemble(chunk, &unit, None);
            }
            return Ok(false);
        }
        if let Some(place) = &observe
            && let Some((address, _)) = self.direct_output(chunk)
        {
            // SAFETY: the whole chunk belongs there, as it is, and to no other unit; the batch is lent to this reader until
            // this unit is finished.
            let output = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) };
            read(output, place, scratch)?;
            chunk.take(usize::MAX).iter_mut().for_each(|unit| unit.times = times);
            return Ok(true);
        }
        let mut decoded = std::mem::take(&mut scratch.decoded);
        memory::grow(&mut decoded, bytes as u64).map_err(no_memory(&at))?;
        let done = match &observe {
            Some(place) => read(&mut decoded[..bytes], place, scratch),
            None => {
                array.fill(&mut decoded[..bytes]);
                Ok(())
            }
        };
        if done.is_ok() {
            for mut unit in chunk.take(usize::MAX) {
                unit.times = times;
                self.assemble(chunk, &unit, Some(&decoded[..bytes]));
            }
        }
        scratch.decoded = decoded;
        done.map(|()| observe.is_some())
    }

    /// Where the elements of a chunk belong in an output, if they belong there all together as they are, for one batch
    /// only; and when that may be written.
    fn direct_output(&self, chunk: &Chunk) -> Option<(u64, Arc<Batch>)> {
        if chunk.allocation().is_some() {
            return None;
        }
        let (conversion, bytes) = (self.conversion(chunk), self.array(chunk).read_chunk_bytes());
        chunk.only_unit(|unit| {
            let address =
                assemble::whole_chunk(&unit.boxes, conversion, bytes, unit.batch.outputs[unit.output])?;
            Some((address, unit.batch.clone()))
        })
    }

    /// CPU backend: assembles a unit from a chunk that is there.
    fn assemble_held(&self, chunk: &Chunk, unit: &PendingUnit) {
        match chunk.cached() {
            Some(Cached::Missing) => self.assemble(chunk, unit, None),
            Some(Cached::Host(decoded)) => self.assemble(chunk, unit, Some(&decoded)),
            Some(Cached::Device { .. }) | None => {
                let message = "a chunk is not where it should be".into();
                unit.batch.fail(Error::Panic { place: "a worker".into(), message });
            }
        }
    }

    /// CPU backend: puts the elements of a decoded chunk, or its fill value, into an output.
    fn assemble(&self, chunk: &Chunk, unit: &PendingUnit, decoded: Option<&[u8]>) {
        let array = self.array(chunk);
        let fill = Source::Fill(array.fill_element().unwrap_or_default());
        let source = decoded.map_or(fill, Source::Decoded);
        let output = unit.batch.outputs[unit.output];
        // SAFETY: the outputs of the CPU backend are host memory, lent until the batch is handed over, which waits
        // for this unit; plans give no element to two units.
        unsafe { host::assemble(source, &unit.boxes, self.conversion(chunk), output) };
    }

    /// Reads a chunk with cuFile.
    ///
    /// # Safety
    /// As for [`Uploader::read`].
    #[allow(clippy::too_many_arguments, reason = "what, where from, where to and for whom")]
    unsafe fn read_with_cufile(
        &self,
        sender: &mut Uploader,
        blob: &dyn Blob,
        handle: &Handle,
        range: &Range<u64>,
        to: u64,
        host: Option<&mut [u8]>,
        at: &Context,
    ) -> Result<()> {
        let _range = trace::range(Stage::Fetch, range.end - range.start);
        // SAFETY: the duties of the caller.
        unsafe { sender.read(blob, handle, range, to, host) }
            .map_err(|source| Error::Io { at: at.clone(), source })?;
        self.counters.bytes_read_gds.add(range.end - range.start);
        Ok(())
    }

    /// The longest encoded chunk that is read.
    fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.host_memory_bytes, codec::lenient_bound)
    }

    /// Reads and decodes a read chunk on this thread, into native byte order. Says when everything was read.
    fn read_and_unpack(
        &self,
        chunk: &Chunk,
        blob: &dyn Blob,
        range: &Range<u64>,
        into: &mut [u8],
        scratch: &mut Scratch,
        at: &Context,
    ) -> Result<Instant> {
        let array = self.array(chunk);
        let bytes = range.end - range.start;
        let chain = self.parts[chunk.place()].direct_chain.as_ref();
        if array.codec.is_plain() {
            check_plain_size(bytes, array.read_chunk_bytes(), at)?;
        }
        if chain.is_some_and(GpuChain::is_copy) {
            read(blob, range, into, at)?;
            self.counters.decoded(into.len() as u64, false);
            return Ok(Instant::now());
        }
        let most = self.most_encoded_bytes(array);
        if bytes > most {
            let problem = format!(
                "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                array.read_chunk_bytes()
            );
            return Err(Error::Damaged { at: at.clone(), problem });
        }
        let Scratch { encoded: buffer, unpacker, .. } = scratch;
        memory::grow(buffer, bytes).map_err(no_memory(at))?;
        let encoded = &mut buffer[..bytes as usize];
        read(blob, range, encoded, at)?;
        let fetched = Instant::now();
        let _range = trace::range(Stage::DecodeOnCpu, into.len() as u64);
        if !chain.is_some_and(|chain| chain.decode_into(encoded, into, unpacker)) {
            let decoded = codec::decode_on_cpu(array, Cow::Borrowed(encoded))
                .map_err(|error| Error::Decode { at: at.clone(), source: error.into() })?;
            into.copy_from_slice(&decoded);
        }
        if bytes > encoded_scratch_bytes(array) {
            // More than the budget counts; the next chunks do with less.
            *buffer = vec![];
        }
        self.counters.decoded(into.len() as u64, false);
        Ok(fetched)
    }
}

/// For `map_err` where memory is asked for.
fn no_memory(at: &Context) -> impl FnOnce(Refused) -> Error {
    |refused| Error::Memory { at: at.clone(), bytes: refused.bytes }
}

/// The GPU backend's decode path of a chunk, as far as a worker goes it.
struct ChunkUpload<'a> {
    workers: &'a WorkerContext,
    chunk: &'a Arc<Chunk>,
    array: &'a ArrayInfo,
    upload_pool: &'a Arc<DevicePool>,
    most_boxes: usize,
    jobs: &'a Jobs,
}

/// Where units that wait for a chunk which stays want all of it as it is, in their order; `None` for the others.
type Copies = SmallVec<[Option<(u64, Arc<Batch>)>; 1]>;

/// Where the elements of a chunk go.
enum Destination {
    /// To the place in an output where they belong.
    Output,
    /// To where the chunk stays.
    Cache,
    /// To where a GPU worker gathers them from.
    UploadPool(Allocation),
}

/// What is in the memory of a small chunk.
struct Filled {
    /// What is to be done with it.
    work: Work,
    /// Where it begins.
    start: u64,
    times: Times,
    by_gpu: bool,
    identity: Option<Identity>,
}

impl Filled {
    fn new(work: Work, times: Times) -> Self {
        Self { work, start: 0, times, by_gpu: false, identity: None }
    }
}

impl ChunkUpload<'_> {
    /// Sends the chunk on its way; whether this thread decoded it. On an error copies of it may be in flight still. Does
    /// nothing once the reader stops.
    fn send(&self, sender: &mut Uploader, scratch: &mut Scratch, decodes: bool) -> Result<bool> {
        let (observe, at) = self.workers.locate(self.chunk)?;
        let Some((blob, range)) = observe else {
            if self.array.fill_element().is_some() {
                let missing = GpuTask::new(self.chunk.clone(), Payload::Missing, at);
                sender.add(None, self.gpu_task(missing, Times::default()).into())?;
                return Ok(false);
            }
            self.send_elements(sender, at, |into| {
                self.array.fill(into);
                Ok(Times::default())
            })?;
            return Ok(false);
        };
        let decode_path = &self.workers.parts[self.chunk.place()].decode_path;
        if let (DecodePath::Gpu(chain), false) = (decode_path, decodes)
            && range.end - range.start <= chain.encoded_bound()
        {
            if let Some(work) = chain.plain() {
                self.send_plain(&*blob, &range, work, sender, at)?;
                return Ok(false);
            }
            if self.send_encoded(&*blob, &range, chain, sender, &at)? {
                return Ok(false);
            }
        }
        self.send_elements(sender, at.clone(), |into| {
            let fetched = self.workers.read_and_unpack(self.chunk, &*blob, &range, into, scratch, &at)?;
            Ok(Times { fetched: Some(fetched), decoded: Some(Instant::now()), by_gpu: false })
        })?;
        Ok(true)
    }

    /// Elements that this thread has.
    fn send_elements(
        &self,
        sender: &mut Uploader,
        at: Context,
        fill: impl FnOnce(&mut [u8]) -> Result<Times>,
    ) -> Result<()> {
        let work = Work::none(self.array.read_chunk_bytes());
        let copies = self.copies(&work);
        let goes_alone = copies.iter().any(Option::is_some)
            || (self.has_time_to_copy(&work) && self.workers.direct_output(self.chunk).is_some());
        if work.bytes as usize <= sender.small_bytes() && !goes_alone {
            return self
                .send_small(sender, work.bytes, &at, |into| Ok(Some(Filled::new(work, fill(into)?))))
                .map(|_| ());
        }
        let Some((destination, address)) = self.destination(sender, &work)? else { return Ok(()) };
        let Some(mut buffer) = sender.buffer(work.bytes as usize)? else { return Ok(()) };
        let times = fill(buffer.bytes_mut())?;
        // SAFETY: the destination has the size of the chunk's elements and belongs to it alone; so do the units' places.
        unsafe { send_to_all(sender, buffer.bytes(), address, 0, &copies)? };
        self.submit(Some(buffer), sender, (destination, address), &copies, work, (times, false), at)
    }

    /// An uncompressed chunk: its bytes go piece by piece to where they belong.
    fn send_plain(
        &self,
        blob: &dyn Blob,
        range: &Range<u64>,
        work: Work,
        sender: &mut Uploader,
        at: Context,
    ) -> Result<()> {
        check_plain_size(range.end - range.start, work.bytes, &at)?;
        let start = gpu_worker::misalignment(&work);
        if work.bytes + start <= sender.small_bytes() as u64 && sender.cufile(blob, work.bytes).is_none() {
            let fill = |into: &mut [u8]| {
                read(blob, range, &mut into[start as usize..], &at)?;
                let times = Times { fetched: Some(Instant::now()), ..Times::default() };
                Ok(Some(Filled { start, by_gpu: true, ..Filled::new(work, times) }))
            };
            return self.send_small(sender, range.end - range.start + start, &at, fill).map(|_| ());
        }
        let Some((destination, address)) = self.destination(sender, &work)? else { return Ok(()) };
        let mut copies = Copies::new();
        let sent = match sender.cufile(blob, work.bytes) {
            // SAFETY: the destination has the size of the chunk and belongs to it alone.
            Some(handle) => unsafe {
                self.workers.read_with_cufile(sender, blob, handle, range, address, None, &at)
            },
            None => {
                copies = self.copies(&work);
                // SAFETY: as above; so do the units' places.
                unsafe { self.send_pieces(blob, range, address, &copies, sender, &at) }
            }
        };
        if sent.is_err() {
            // What arrives after this could fall on somebody else's chunk.
            sender.abort();
        }
        sent?;
        let times = Times { fetched: Some(Instant::now()), ..Times::default() };
        self.submit(None, sender, (destination, address), &copies, work, (times, true), at)
    }

    /// Reads a chunk and sends it piece by piece. Stops early once the reader stops.
    ///
    /// # Safety
    /// The destination has the size of the range and belongs to the chunk alone until the copies have arrived; so do the places
    /// of the units.
    unsafe fn send_pieces(
        &self,
        blob: &dyn Blob,
        range: &Range<u64>,
        address: u64,
        copies: &Copies,
        sender: &mut Uploader,
        at: &Context,
    ) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + Uploader::PIECE_BYTES as u64);
            let Some(mut buffer) = sender.buffer((end - start) as usize)? else { return Ok(()) };
            read(blob, &(start..end), buffer.bytes_mut(), at)?;
            // SAFETY: the duty of the caller.
            unsafe { send_to_all(sender, buffer.bytes(), address, start - range.start, copies)? };
            sender.add(Some(buffer), OnComplete::Piece)?;
            start = end;
        }
        Ok(())
    }

    /// A chunk that the GPU decodes: its bytes land there, and what that takes is found out from them on the way. False if
    /// it turns out that the GPU cannot.
    fn send_encoded(
        &self,
        blob: &dyn Blob,
        range: &Range<u64>,
        chain: &GpuChain,
        sender: &mut Uploader,
        at: &Context,
    ) -> Result<bool> {
        let bytes = range.end - range.start;
        // Inner chunks of one file differ by their cells.
        let identity = |work: &Work| {
            (work.zstd_blocks() > 0)
                .then(|| Identity::new(self.chunk.place(), &self.chunk.read_chunk, blob.version()))
        };
        if bytes as usize <= sender.small_bytes() && sender.cufile(blob, bytes).is_none() {
            return self.send_small(sender, bytes, at, |into| {
                read(blob, range, into, at)?;
                let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
                let Some((part, work)) = self.prepare(chain, into, at)? else { return Ok(None) };
                // So that it begins at an aligned address.
                into.copy_within(part, 0);
                Ok(Some(Filled { by_gpu: true, identity: identity(&work), ..Filled::new(work, times) }))
            });
        }
        let Some(allocation) = self.allocation(bytes, sender)? else { return Ok(true) };
        let Some(mut buffer) = sender.buffer(bytes as usize)? else { return Ok(true) };
        let on_device = catch_unwind(AssertUnwindSafe(|| {
            self.upload_encoded(blob, range, chain, sender, &allocation, &mut buffer, at)
        }));
        if !matches!(on_device, Ok(Ok(Some(_)))) {
            // Before room and buffer go to others.
            sender.abort();
        }
        let on_device = on_device.unwrap_or_else(|payload| resume_unwind(payload));
        let Some((work, times)) = on_device? else { return Ok(false) };
        let (address, allocation, identity) = (allocation.address(), Arc::new(allocation), identity(&work));
        let on_device =
            Payload::OnDevice(OnDevice { address, allocation: Some(allocation), work, arrived: None });
        let fetched =
            GpuTask { identity, by_gpu: true, ..GpuTask::new(self.chunk.clone(), on_device, at.clone()) };
        sender.add(Some(buffer), self.gpu_task(fetched, times).into())?;
        Ok(true)
    }

    /// Reads an encoded chunk and sends it to its room. `None` if it is the CPU's part.
    #[allow(clippy::too_many_arguments, reason = "what, where from and where to")]
    fn upload_encoded(
        &self,
        blob: &dyn Blob,
        range: &Range<u64>,
        chain: &GpuChain,
        sender: &mut Uploader,
        allocation: &Allocation,
        buffer: &mut PinnedBuffer,
        at: &Context,
    ) -> Result<Option<(Work, Times)>> {
        let bytes = range.end - range.start;
        let mut start = 0;
        if let Some(handle) = sender.cufile(blob, bytes) {
            let (host, to) = (Some(buffer.bytes_mut()), allocation.address());
            // SAFETY: room and buffer have the size of the chunk and belong to it alone.
            unsafe { self.workers.read_with_cufile(sender, blob, handle, range, to, host, at)? };
            // What is in the chunk is found out on the host.
            sender.wait()?;
            start = bytes;
        }
        while start < bytes {
            let end = bytes.min(start + Uploader::PIECE_BYTES as u64);
            let piece = &mut buffer.bytes_mut()[start as usize..end as usize];
            read(blob, &(range.start + start..range.start + end), piece, at)?;
            if !chain.is_verified_by_host() {
                // SAFETY: the room has the size of the chunk and belongs to it alone.
                unsafe { sender.copy(piece, allocation.address() + start)? };
            }
            start = end;
        }
        let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
        let Some((part, work)) = self.prepare(chain, buffer.bytes(), at)? else { return Ok(None) };
        if chain.is_verified_by_host() {
            // SAFETY: as above.
            unsafe { sender.copy(&buffer.bytes()[part], allocation.address())? };
        }
        Ok(Some((work, times)))
    }

    /// Where bytes go on which this work is to be done, and the address. `None` once the reader stops.
    fn destination(&self, sender: &mut Uploader, work: &Work) -> Result<Option<(Destination, u64)>> {
        let all = work.elements == (0..work.bytes);
        if work.passes.is_empty()
            && all
            && !work.swaps_bytes
            && let Some((address, batch)) = self.workers.direct_output(self.chunk)
        {
            batch.writable.as_ref().map_or(Ok(()), |writable| sender.wait_for(writable))?;
            return Ok(Some((Destination::Output, address)));
        }
        if let (Some(allocation), true, 1) = (self.chunk.allocation(), all, work.areas()) {
            return Ok(Some((Destination::Cache, allocation.address())));
        }
        let allocation = self.allocation(upload_bytes(work.bytes), sender)?;
        Ok(allocation.map(|allocation| {
            let address = allocation.address() + gpu_worker::misalignment(work);
            (Destination::UploadPool(allocation), address)
        }))
    }

    /// Whether bytes on which this work is to be done had better be copied to each place where they belong. That costs the bus, which
    /// has room while the consumer has enough in store; a kernel that gathers them costs the model that trains.
    fn has_time_to_copy(&self, work: &Work) -> bool {
        let as_they_are = work.passes.is_empty() && work.elements == (0..work.bytes) && work.areas() == 1;
        as_they_are
            && !work.swaps_bytes
            && work.bytes >= Uploader::LEAST_COPY
            && self.jobs.has_time(Duration::ZERO)
    }

    /// Where they are copied besides to where the chunk stays.
    fn copies(&self, work: &Work) -> Copies {
        if self.chunk.allocation().is_none() || !self.has_time_to_copy(work) {
            return Copies::new();
        }
        let conversion = self.workers.conversion(self.chunk);
        self.chunk.look_at(self.most_boxes, |unit| {
            let output = unit.batch.outputs[unit.output];
            let address = assemble::whole_chunk(&unit.boxes, conversion, work.bytes, output)?;
            Some((address, unit.batch.clone()))
        })
    }

    /// What the GPU has to do with an encoded chunk. `None` if it is the CPU's part.
    fn prepare(
        &self,
        chain: &GpuChain,
        encoded: &[u8],
        at: &Context,
    ) -> Result<Option<(Range<usize>, Work)>> {
        match chain.prepare(encoded) {
            Ok(Prepared::Gpu(part, work)) => Ok(Some((part, work))),
            Err(problem) => Err(Error::Damaged { at: at.clone(), problem }),
            Ok(Prepared::Cpu(reason)) => {
                log_once(&format!("{}: decoded on the CPU: {reason}", self.array.context()));
                Ok(None)
            }
        }
    }

    /// A small chunk, which goes together with others. False if what fills its memory says that it should not.
    fn send_small(
        &self,
        sender: &mut Uploader,
        bytes: u64,
        at: &Context,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<Filled>>,
    ) -> Result<bool> {
        let Some(slot) = sender.slot(bytes as usize)? else { return Ok(true) };
        let Some(filled) = fill(sender.slot_bytes(&slot))? else { return Ok(false) };
        let Some((address, allocation)) = sender.keep(slot) else { return Ok(true) };
        let Filled { work, start, times, by_gpu, identity } = filled;
        let on_device =
            OnDevice { address: address + start, allocation: Some(allocation), work, arrived: None };
        let fetched = GpuTask::new(self.chunk.clone(), Payload::OnDevice(on_device), at.clone());
        let fetched = self.gpu_task(GpuTask { by_gpu, identity, ..fetched }, times);
        sender.add(None, fetched.into())?;
        Ok(true)
    }

    /// Waits for room to land. `None` once the reader stops.
    fn allocation(&self, bytes: u64, sender: &mut Uploader) -> Result<Option<Allocation>> {
        let allocation = self.upload_pool.take(bytes, 0, || sender.complete_all());
        if allocation.is_none() && !self.upload_pool.is_closed() {
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: self.upload_pool.capacity_bytes(),
                needed_bytes: bytes,
                what: "one chunk on its way to be decoded".into(),
            });
        }
        Ok(allocation)
    }

    /// Lets the last copy of bytes on which this work is to be done go to their destination, and to units that want them as they
    /// are. `by_gpu`: what is to be done to them is the GPU's part.
    #[allow(clippy::too_many_arguments, reason = "what, where to and for whom")]
    fn submit(
        &self,
        buffer: Option<PinnedBuffer>,
        sender: &mut Uploader,
        (destination, address): (Destination, u64),
        copies: &Copies,
        work: Work,
        (times, by_gpu): (Times, bool),
        at: Context,
    ) -> Result<()> {
        let allocation = match destination {
            Destination::Output => {
                let mut units = self.chunk.take(usize::MAX);
                units.iter_mut().for_each(|unit| unit.times = times);
                if by_gpu {
                    self.workers.counters.decoded(work.bytes, true);
                }
                return sender.add(buffer, OnComplete::PendingUnits(units));
            }
            Destination::Cache => None,
            Destination::UploadPool(allocation) => Some(Arc::new(allocation)),
        };
        let on_device = Payload::OnDevice(OnDevice { address, allocation, work, arrived: None });
        let fetched = GpuTask { by_gpu, ..GpuTask::new(self.chunk.clone(), on_device, at) };
        let (mut fetched, mut there) = (self.gpu_task(fetched, times), PendingUnits::new());
        // Those that were looked at are the first of those that were taken.
        for (number, _) in copies.iter().enumerate().rev().filter(|(_, copy)| copy.is_some()) {
            there.push(fetched.units.remove(number));
        }
        sender.add(buffer, OnComplete::GpuTask(Box::new(fetched), there))
    }

    /// The chunk for the GPU workers, with those who wait for it by now. Those that come later are assembled once it is where it
    /// stays.
    fn gpu_task(&self, mut fetched: GpuTask, times: Times) -> GpuTask {
        fetched.units = self.chunk.take(self.most_boxes);
        fetched.units.iter_mut().for_each(|unit| unit.times = times);
        fetched.arrived = times.fetched;
        fetched
    }
}

/// Enqueues copies of a part of a chunk, which begins at `offset`, to where the chunk goes and to the units' places.
///
/// # Safety
/// All of them have room for the chunk, and nothing else uses that until the copies have arrived.
unsafe fn send_to_all(
    sender: &Uploader,
    bytes: &[u8],
    address: u64,
    offset: u64,
    copies: &Copies,
) -> Result<()> {
    // SAFETY: the duty of the caller.
    unsafe { sender.copy(bytes, address + offset)? };
    for (address, batch) in copies.iter().flatten() {
        batch.writable.as_ref().map_or(Ok(()), |writable| sender.wait_for(writable))?;
        // SAFETY: as above; the batch is lent to this reader until the unit is finished.
        unsafe { sender.copy(bytes, address + offset)? };
    }
    Ok(())
}

fn read(blob: &dyn Blob, range: &Range<u64>, into: &mut [u8], at: &Context) -> Result<()> {
    let _range = trace::range(Stage::Fetch, range.end - range.start);
    blob.read_at(range.start, into).map_err(|source| Error::Io { at: at.clone(), source })
}

fn check_plain_size(bytes: u64, expected: u64, at: &Context) -> Result<()> {
    if bytes == expected {
        return Ok(());
    }
    let problem = format!("the uncompressed chunk has {bytes} bytes instead of {expected}");
    Err(Error::Damaged { at: at.clone(), problem })
}

/// Room for bytes whose elements may have to be aligned.
fn upload_bytes(bytes: u64) -> u64 {
    bytes + gpu_worker::ELEMENT_ALIGNMENT
}

/// Host memory that a thread has for encoded bytes of a chunk, as far as encoders make no more: for budgets.
fn encoded_scratch_bytes(array: &ArrayInfo) -> u64 {
    array.codec.encoded_bound.unwrap_or_else(|| codec::lenient_bound(array.read_chunk_bytes()))
}

/// Host memory that a thread needs besides to read and decode a chunk: for budgets. `decoded` bytes of it are for its
/// elements, where these are not decoded to where they belong.
pub fn scratch_bytes(array: &ArrayInfo, decoded: u64) -> u64 {
    let chain = match codec::decode_path(array) {
        DecodePath::Gpu(chain) => Some(chain),
        DecodePath::Cpu(_) => None,
    };
    let (encoded, copies) = match chain {
        Some(chain) if chain.is_copy() => (0, 0),
        Some(chain) if chain.is_direct() => (encoded_scratch_bytes(array), 0),
        // zarrs has what a codec gets and what it makes of that.
        _ => (encoded_scratch_bytes(array), 2),
    };
    let copies = array.read_chunk_bytes().saturating_mul(copies);
    encoded.saturating_add(copies).saturating_add(decoded)
}

/// The largest piece of pinned memory that a chunk needs: for budgets.
pub fn largest_pinned_bytes(array: &ArrayInfo, decode_path: &DecodePath) -> u64 {
    let decoded = array.read_chunk_bytes();
    PinnedPool::padded(match decode_path {
        DecodePath::Gpu(chain) => chain.encoded_bound().max(decoded),
        DecodePath::Cpu(_) => decoded,
    })
}

/// Device memory that a chunk needs until a GPU worker is done with it, if it is not where it belongs: for budgets.
pub fn largest_upload_bytes(array: &ArrayInfo, decode_path: &DecodePath) -> u64 {
    let elements = upload_bytes(array.read_chunk_bytes());
    DevicePool::padded(match decode_path {
        DecodePath::Gpu(chain) => elements.max(upload_bytes(chain.encoded_bound())),
        DecodePath::Cpu(_) => elements,
    })
}
