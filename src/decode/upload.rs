//! The way of a thread's bytes to the GPU: pinned memory and copies from it, several in flight.
//!
//! Pieces are small and their memory is used again as soon as they have arrived, so that it stays in the host's cache: the
//! copy then costs the host's memory nothing, and reaches the rate of the bus instead of two thirds of it (benches/NOTES.md).

use super::Queue;
use super::device_pool::{Allocation, DevicePool};
use super::gpu_worker::GpuTask;
use super::watchdog::Watchdog;
use crate::batch::{PendingUnit, PendingUnits};
use crate::error::{Error, GpuWork, Result};
use crate::fetch::Blob;
use crate::fetch::cufile::Handle;
use crate::gpu::{Gpu, PinnedBuffer, PinnedPool};

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};

/// What a sender is made of.
#[derive(Clone)]
pub struct UploaderParts {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Where bytes begin.
    pub pinned: Arc<PinnedPool>,
    /// Who is told of chunks.
    pub queue: Arc<Queue<GpuTask>>,
    /// Where chunks land.
    pub upload_pool: Arc<DevicePool>,
    /// Of a packed buffer; none if there are no packed buffers.
    pub packed_bytes: u64,
}

/// A thread's stream.
pub struct Uploader {
    parts: UploaderParts,
    stream: Arc<CudaStream>,
    packed: Option<PackedBuffer>,
    /// Where more is added.
    pending: Submission,
    /// What is on its way, the oldest first, with its event.
    submissions: VecDeque<(Arc<CudaEvent>, Submission)>,
    /// Bytes of all flights.
    bytes: usize,
    staging: Option<GdsStaging>,
    watchdog: Arc<Watchdog>,
}

/// A part of the memory that cuFile reads to, in two halves.
pub struct GdsStaging {
    /// The start of all that memory, as cuFile knows it.
    base: u64,
    /// Where the part begins in it.
    start: u64,
    /// Of one half.
    bytes: u64,
    turn: usize,
    /// When the halves may be written to again.
    free: [Option<CudaEvent>; 2],
}

impl GdsStaging {
    /// What direct access needs offsets, sizes and addresses to be multiples of.
    pub const ALIGNMENT: u64 = 4096;
    /// The most bytes of one half: those with which a bare loop of as many threads reads fastest (benches/NOTES.md).
    pub const MOST_BYTES: u64 = 4 << 20;

    /// Part number `number` of memory at `base`, with halves of so many bytes.
    pub fn new(base: u64, number: u64, bytes: u64) -> Self {
        Self { base, start: 2 * number * bytes, bytes, turn: 0, free: [None, None] }
    }
}

/// Copies that arrive together.
#[derive(Default)]
struct Submission {
    /// What they are made from.
    buffers: Vec<PinnedBuffer>,
    /// Who is finished when they have arrived.
    units: Vec<PendingUnit>,
    /// What the GPU workers can begin with then.
    tasks: Vec<GpuTask>,
    /// Bytes that cuFile read.
    by_cufile: usize,
}

impl Submission {
    fn bytes(&self) -> usize {
        self.by_cufile + self.buffers.iter().map(|buffer| buffer.bytes().len()).sum::<usize>()
    }

    fn chunks(&self) -> usize {
        self.units.len() + self.tasks.len()
    }

    fn fail(&self, error: Error) {
        let error = Arc::new(error);
        self.units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        self.tasks.iter().for_each(|tasks| tasks.fail(Error::Sticky(error.clone())));
    }
}

/// Memory for small chunks that go to the GPU in one copy: a GPU makes no more than some 75,000 copies a second when they come
/// from many streams.
struct PackedBuffer {
    buffer: PinnedBuffer,
    allocation: Arc<Allocation>,
    used: usize,
}

/// A place in the packed buffer that is being filled.
pub struct Slot(Range<usize>);

/// Who gets what a copy brings.
pub enum OnComplete {
    /// Nobody yet: it is a piece.
    Piece,
    /// Units that are finished with it.
    PendingUnits(PendingUnits),
    /// The GPU workers, and units that are finished with it without them.
    GpuTask(Box<GpuTask>, PendingUnits),
}

impl From<GpuTask> for OnComplete {
    fn from(tasks: GpuTask) -> Self {
        Self::GpuTask(Box::new(tasks), PendingUnits::new())
    }
}

impl Uploader {
    /// Larger chunks are read and copied in pieces of so many bytes, if nobody has to see them whole.
    pub const PIECE_BYTES: usize = 2 << 20;
    /// Chunks of fewer bytes are not worth a copy of their own.
    pub const LEAST_COPY: u64 = 256 << 10;
    /// With more than this in flight it waits for the oldest.
    const IN_FLIGHT: usize = 2 * Self::PIECE_BYTES;
    /// Small chunks fly together until there are so many bytes or chunks of them.
    const FULL: (usize, usize) = (1 << 20, 256);
    /// A packed buffer has room for so many of the largest chunks that it takes.
    const PACKED_SHARE: usize = 4;
    /// Who waits for copies looks again so often.
    const POLL: Duration = Duration::from_micros(30);

    /// A sender with a stream of its own, and the memory that cuFile reads to, if it does. `watchdog` is that of its thread.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(
        parts: UploaderParts,
        staging: &mut Option<GdsStaging>,
        watchdog: Arc<Watchdog>,
    ) -> Result<Self> {
        Ok(Self {
            stream: parts.gpu.stream()?,
            parts,
            packed: None,
            pending: Submission::default(),
            submissions: VecDeque::new(),
            bytes: 0,
            staging: staging.take(),
            watchdog,
        })
    }

    /// What cuFile reads that many bytes with, if it does.
    pub fn cufile<'a>(&self, blob: &'a dyn Blob, bytes: u64) -> Option<&'a Handle> {
        /// Fewer bytes are read faster by the host.
        const LEAST_BYTES: u64 = 64 << 10;
        self.staging.as_ref().and_then(|_| blob.cufile()).filter(|_| bytes >= LEAST_BYTES)
    }

    /// Reads a range of a file with cuFile, to device memory and, if they are wanted there, to pinned memory. The bytes are in
    /// both when what follows on the stream runs.
    ///
    /// # Errors
    /// What cuFile, the system or the driver says, as an error of reading.
    ///
    /// # Safety
    /// The destinations have the size of the range, and nothing else uses them until the copies have arrived.
    pub unsafe fn read(
        &mut self,
        blob: &dyn Blob,
        handle: &Handle,
        range: &Range<u64>,
        to: u64,
        mut host: Option<&mut [u8]>,
    ) -> io::Result<()> {
        let failed = |error: Error| io::Error::other(error.to_string());
        self.parts.gpu.bind().map_err(failed)?;
        let mut done = range.start;
        while done < range.end {
            let Some(staging) = &mut self.staging else { return Err(io::ErrorKind::Unsupported.into()) };
            // The aligned range around what is wanted.
            let start = done - done % GdsStaging::ALIGNMENT;
            let end = range.end.next_multiple_of(GdsStaging::ALIGNMENT).min(start + staging.bytes);
            let half = staging.turn % 2;
            staging.turn += 1;
            if let Some(free) = &staging.free[half] {
                let _waiting = self.watchdog.waits(GpuWork::Copying, None, 1);
                poll(&self.parts.gpu, free).map_err(failed)?;
            }
            let at = staging.start + half as u64 * staging.bytes;
            // SAFETY: this half of the staging memory belongs to this thread, and was waited for.
            let read = unsafe { handle.read(staging.base, at, end - start, start)? };
            let until = range.end.min(start + read);
            if until <= done || (until < range.end && until < end) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (from, bytes) = (staging.base + at + (done - start), (until - done) as usize);
            if !handle.is_verified() {
                verify(blob, done, from, bytes)?;
                handle.set_verified();
            }
            let offset = (done - range.start) as usize;
            let stream = self.stream.cu_stream();
            // SAFETY: the duties of the caller; the staging memory is not written to before the event below.
            unsafe {
                result::memcpy_dtod_async(to + offset as u64, from, bytes, stream)
                    .map_err(Error::cuda("copying a chunk on the GPU"))
                    .map_err(failed)?;
                if let Some(host) = &mut host {
                    result::memcpy_dtoh_async(&mut host[offset..offset + bytes], from, stream)
                        .map_err(Error::cuda("copying a chunk to the host"))
                        .map_err(failed)?;
                }
            }
            let free = match staging.free[half].take() {
                Some(event) => event,
                None => self.parts.gpu.quiet_event().map_err(failed)?,
            };
            free.record(&self.stream).map_err(Error::cuda("recording an event")).map_err(failed)?;
            staging.free[half] = Some(free);
            self.pending.by_cufile += bytes;
            done = until;
            // A piece takes cuFile so long that what was sent before it should not have to wait for all of them.
            self.complete_arrived();
        }
        blob.check_unchanged()
    }

    /// Waits until everything so far is where it should be.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self) -> Result<()> {
        let _waiting = self.watchdog.waits(GpuWork::Copying, None, 1);
        self.stream.synchronize().map_err(Error::cuda("copying a chunk on the GPU"))
    }

    /// Takes pinned memory, waiting for some. `None` once the pool is closed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn buffer(&mut self, bytes: usize) -> Result<Option<PinnedBuffer>> {
        if let Some(buffer) = self.parts.pinned.try_take(bytes)? {
            return Ok(Some(buffer));
        }
        // Whoever waits here holds nothing that others wait for.
        self.complete_all();
        self.parts.pinned.take(bytes)
    }

    /// The most bytes of a chunk that goes in a packed buffer.
    pub fn small_bytes(&self) -> usize {
        self.parts.packed_bytes as usize / Self::PACKED_SHARE
    }

    /// A place for a chunk of at most [`Uploader::small_bytes`]. `None` once the reader stops.
    ///
    /// # Errors
    /// What the driver says.
    pub fn slot(&mut self, bytes: usize) -> Result<Option<Slot>> {
        let fits = |packed: &PackedBuffer| packed.used + bytes <= packed.buffer.bytes().len();
        if !self.packed.as_ref().is_some_and(fits) {
            self.submit()?;
            let upload_pool = self.parts.upload_pool.clone();
            let allocation = upload_pool.take(self.parts.packed_bytes, 0, || self.complete_all());
            let Some(allocation) = allocation else { return Ok(None) };
            let Some(buffer) = self.buffer(self.parts.packed_bytes as usize)? else { return Ok(None) };
            self.packed = Some(PackedBuffer { buffer, allocation: Arc::new(allocation), used: 0 });
        }
        Ok(self.packed.as_ref().map(|packed| Slot(packed.used..packed.used + bytes)))
    }

    /// The memory of a slot.
    pub fn slot_bytes(&mut self, slot: &Slot) -> &mut [u8] {
        match &mut self.packed {
            Some(packed) => &mut packed.buffer.bytes_mut()[slot.0.clone()],
            None => &mut [],
        }
    }

    /// Keeps what is in a slot. Returns where it will be on the GPU, and what that is in.
    pub fn keep(&mut self, slot: Slot) -> Option<(u64, Arc<Allocation>)> {
        let packed = self.packed.as_mut()?;
        packed.used = slot.0.end.next_multiple_of(PinnedPool::ALIGNMENT as usize);
        Some((packed.allocation.address() + slot.0.start as u64, packed.allocation.clone()))
    }

    /// What is sent from now on waits for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<()> {
        self.stream.wait(event).map_err(Error::cuda("waiting for output memory"))
    }

    /// Enqueues a copy out of memory that [`Uploader::buffer`] gave, which is then either given to [`Uploader::add`] or
    /// kept until [`Uploader::complete_all`].
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The destination is device memory of that size that nothing else uses until the copy has arrived.
    pub unsafe fn copy(&self, bytes: &[u8], to: u64) -> Result<()> {
        self.parts.gpu.bind()?;
        // SAFETY: the duty of the caller.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying a chunk to the GPU"))
    }

    /// Adds what was copied last, and the memory that it was copied from.
    ///
    /// # Errors
    /// What the driver says.
    pub fn add(&mut self, buffer: Option<PinnedBuffer>, cargo: OnComplete) -> Result<()> {
        self.pending.buffers.extend(buffer);
        match cargo {
            OnComplete::Piece => {}
            OnComplete::PendingUnits(units) => self.pending.units.extend(units),
            OnComplete::GpuTask(tasks, units) => {
                self.pending.tasks.push(*tasks);
                self.pending.units.extend(units);
            }
        }
        if self.pending.bytes() >= Self::FULL.0 || self.pending.chunks() >= Self::FULL.1 {
            self.submit()?;
        }
        while self.bytes > Self::IN_FLIGHT && self.submissions.len() > 1 {
            self.complete_oldest();
        }
        Ok(())
    }

    /// Lets what was added go. GPU workers learn of it now, and wait for it on their streams.
    fn submit(&mut self) -> Result<()> {
        let mut submission = std::mem::take(&mut self.pending);
        let mut copied = Ok(());
        if let Some(PackedBuffer { buffer, allocation, used }) = self.packed.take_if(|packed| packed.used > 0)
        {
            let used = used.min(buffer.bytes().len());
            // SAFETY: room and buffer are equally large, and the room belongs to this packed buffer alone.
            copied = unsafe { self.copy(&buffer.bytes()[..used], allocation.address()) };
            submission.buffers.push(buffer);
        }
        if submission.chunks() == 0 && submission.buffers.is_empty() {
            return Ok(());
        }
        let arrived = copied.and_then(|()| self.parts.gpu.quiet_event()).and_then(|event| {
            event.record(&self.stream).map_err(Error::cuda("recording an event"))?;
            Ok(Arc::new(event))
        });
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                // Nothing of it may be on its way when its memory is given back.
                let _ = self.wait();
                let error = Arc::new(error);
                submission.fail(Error::Sticky(error.clone()));
                return Err(Error::Sticky(error));
            }
        };
        let mut tasks = std::mem::take(&mut submission.tasks);
        tasks.iter_mut().for_each(|tasks| tasks.arrives_with(&arrived));
        self.parts.queue.push(tasks);
        self.bytes += submission.bytes();
        self.submissions.push_back((arrived, submission));
        Ok(())
    }

    /// Lets everything go and waits until it has arrived.
    pub fn complete_all(&mut self) {
        // An error was told to those whom it concerns.
        let _ = self.submit();
        // One that is empty would be in the way of large chunks.
        self.packed = None;
        while !self.submissions.is_empty() {
            self.complete_oldest();
        }
    }

    /// As [`Uploader::complete_all`], where something went wrong: copies of what was not added are waited for too.
    pub fn abort(&mut self) {
        self.complete_all();
        // If this fails, the context is broken and nothing runs any more.
        let _ = self.wait();
    }

    /// Finishes what has arrived, without waiting.
    fn complete_arrived(&mut self) {
        // What failed has come to its end as well.
        while self.submissions.front().is_some_and(|(event, _)| has_happened(event).unwrap_or(true)) {
            self.complete_oldest();
        }
    }

    fn complete_oldest(&mut self) {
        let Some((arrived, submission)) = self.submissions.pop_front() else { return };
        self.bytes -= submission.bytes();
        let _waiting = self.watchdog.waits(GpuWork::Copying, None, submission.chunks());
        if let Err(error) = poll(&self.parts.gpu, &arrived) {
            submission.fail(error);
        }
    }
}

/// Waits for a quiet event.
fn poll(gpu: &Gpu, event: &CudaEvent) -> Result<()> {
    gpu.bind()?;
    while !has_happened(event)? {
        std::thread::sleep(Uploader::POLL);
    }
    Ok(())
}

fn has_happened(event: &CudaEvent) -> Result<bool> {
    // SAFETY: the event lives; the call only asks.
    match unsafe { result::event::query(event.cu_event()) } {
        Ok(()) => Ok(true),
        Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(error) => Err(Error::cuda("copying a chunk to the GPU")(error)),
    }
}

/// Compares the beginning of what cuFile read to `address` with what the system reads: some file systems give it something else.
fn verify(blob: &dyn Blob, offset: u64, address: u64, bytes: usize) -> io::Result<()> {
    let mut theirs = vec![0; bytes.min(GdsStaging::ALIGNMENT as usize)];
    let mut ours = theirs.clone();
    blob.read_at(offset, &mut ours)?;
    // SAFETY: so many bytes were just read to that address.
    unsafe { result::memcpy_dtoh_sync(&mut theirs, address) }
        .map_err(|error| io::Error::other(format!("copying from the GPU failed ({error})")))?;
    match ours == theirs {
        true => Ok(()),
        false => Err(io::Error::other(
            "cuFile does not read what is there: it does not work with this file system; give io=\"posix\"",
        )),
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.abort();
    }
}
