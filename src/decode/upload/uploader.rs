//! Copies a thread's chunks to the GPU: pinned memory, a stream, and several copies in flight.
//!
//! Pieces are small, and their pinned memory is used again as soon as they were copied, so that the host's cache holds it. Then
//! the copy costs no host memory bandwidth, and reaches the rate of the bus instead of two thirds of it (benches/NOTES.md).

use super::cufile::{GdsStaging, verify};
use super::event;
use super::packed::{PackedBuffer, Slot};
use super::submission::{OnComplete, Source, Submission};
use crate::codec::HeaderFormat;
use crate::decode::Queue;
use crate::decode::device_pool::{Allocation, DevicePool};
use crate::decode::flush::Flush;
use crate::decode::gpu_task::GpuTask;
use crate::decode::watchdog::Watchdog;
use crate::error::{Error, GpuWork, Result};
use crate::fetch::Encoded;
use crate::fetch::cufile::Handle;
use crate::gpu::{EventPool, Gpu, HeadersOnDevice, Kernels, LentEvent, PinnedBuffer, PinnedPool};
use crate::store::Buffers;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};

/// What all uploaders of a reader share.
#[derive(Clone)]
pub struct UploaderParts {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The kernels, loaded.
    pub kernels: Arc<Kernels>,
    /// The events of submissions.
    pub events: Arc<EventPool>,
    /// The sources of copies.
    pub pinned: Arc<PinnedPool>,
    /// Pinned memory that answers of stores are received in.
    pub received: Option<Arc<PinnedPool>>,
    /// The queue of the GPU workers.
    pub queue: Arc<Queue<GpuTask>>,
    /// Device memory for chunks until a GPU worker has taken them.
    pub upload_pool: Arc<DevicePool>,
    /// Size of a packed buffer. 0: chunks are not packed.
    pub packed_bytes: u64,
}

/// Copies the chunks of one thread on a stream of its own.
pub struct Uploader {
    parts: UploaderParts,
    stream: Arc<CudaStream>,
    packed: Option<PackedBuffer>,
    /// The submission that copies are added to.
    pending: Submission,
    /// Submissions in flight, the oldest first, each with its event.
    submissions: VecDeque<(Arc<LentEvent>, Submission)>,
    /// Bytes of all submissions in flight.
    bytes: usize,
    staging: Option<GdsStaging>,
    watchdog: Arc<Watchdog>,
}

impl Uploader {
    /// Size of a piece in bytes. A larger chunk is read and copied piece by piece, unless the thread has to see all of it at once.
    pub const PIECE_BYTES: usize = 2 << 20;
    /// With more bytes than this in flight, the uploader waits for the oldest submission.
    const IN_FLIGHT: usize = 2 * Self::PIECE_BYTES;
    /// A packed buffer holds this many of the largest chunks that are packed.
    const PACKED_SHARE: usize = 4;

    /// An uploader with a stream of its own. Takes the thread's `staging` memory if cuFile reads.
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

    /// The handle to read a chunk with cuFile, if cuFile should read it.
    pub fn cufile<'a>(&self, encoded: &'a Encoded) -> Option<&'a Handle> {
        /// Fewer bytes are read faster by the host.
        const LEAST_BYTES: u64 = 64 << 10;
        self.staging.as_ref().and_then(|_| encoded.cufile()).filter(|_| encoded.bytes() >= LEAST_BYTES)
    }

    /// Reads a chunk with cuFile to device memory at `to`, and to pinned memory if `host` is given. The bytes are there when the
    /// work that is enqueued on the stream afterwards runs.
    ///
    /// # Errors
    /// What cuFile, the system or the driver says, as an error of reading.
    ///
    /// # Safety
    /// The destinations have the size of the chunk, and nothing else uses them until the copies are complete.
    pub unsafe fn read(
        &mut self,
        encoded: &Encoded,
        handle: &Handle,
        to: u64,
        mut host: Option<&mut [u8]>,
    ) -> io::Result<()> {
        let failed = |error: Error| io::Error::other(error.to_string());
        self.parts.gpu.bind().map_err(failed)?;
        let range = encoded.range();
        let mut done = range.start;
        while done < range.end {
            let Some(staging) = &mut self.staging else { return Err(io::ErrorKind::Unsupported.into()) };
            let piece = staging.next_piece(done, range.end);
            if let Some(copied) = staging.copied(piece.half) {
                let _waiting = self.watchdog.waits(GpuWork::Copying, None, 1);
                event::wait_for(&self.parts.gpu, copied).map_err(failed)?;
            }
            let length = piece.end - piece.start;
            // SAFETY: this half of the staging memory belongs to this thread, and the copy out of it was waited for.
            let read = unsafe { handle.read(staging.base(), piece.offset, length, piece.start)? };
            let Some(until) = piece.end_of_read(read, done, range.end) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let from = staging.base() + piece.offset + (done - piece.start);
            let bytes = (until - done) as usize;
            if !handle.is_verified() {
                verify(encoded, done, from, bytes)?;
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
            let copied = match staging.copied(piece.half).take() {
                Some(event) => event,
                None => self.parts.gpu.quiet_event().map_err(failed)?,
            };
            copied.record(&self.stream).map_err(Error::cuda("recording an event")).map_err(failed)?;
            *staging.copied(piece.half) = Some(copied);
            self.pending.by_cufile += bytes;
            done = until;
            // cuFile takes long for a piece. Chunks that were submitted before should not wait for all pieces.
            self.complete_arrived();
        }
        encoded.check_unchanged()
    }

    /// Copies the headers of an encoded chunk at `from` to `to`, each byte to the place that it has in the chunk, and waits for them. The
    /// other bytes of `to` are of no meaning. A GPU decodes the chunk to `decoded_bytes`.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// `from` is device memory of the size of `to`, which is the chunk's; its bytes are there when the work that was enqueued on the stream has
    /// run.
    pub unsafe fn read_headers(
        &self,
        from: u64,
        to: &mut PinnedBuffer,
        format: HeaderFormat,
        decoded_bytes: u64,
    ) -> Result<()> {
        let to = to.bytes_mut();
        let (bytes, decoded_bytes) = (to.len() as u32, decoded_bytes as u32);
        let chunk = HeadersOnDevice { from, to: to.as_mut_ptr() as u64, bytes, decoded_bytes, format };
        // SAFETY: the duty of the caller; the buffer belongs to this thread, which waits. Pinned memory has one address on host and GPU
        // (`PinnedMemory`).
        unsafe { self.parts.kernels.copy_headers(&self.stream, chunk)? };
        self.wait()
    }

    /// Waits for everything that was enqueued on the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self) -> Result<()> {
        let _waiting = self.watchdog.waits(GpuWork::Copying, None, 1);
        self.stream.synchronize().map_err(Error::cuda("copying a chunk on the GPU"))
    }

    /// Allocates pinned memory. Waits if there is none. `None` once the pool is closed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn buffer(&mut self, bytes: usize) -> Result<Option<PinnedBuffer>> {
        if let Some(buffer) = self.parts.pinned.try_take(bytes)? {
            return Ok(Some(buffer));
        }
        // A thread that waits for pinned memory must not hold any.
        self.flush();
        self.parts.pinned.take(bytes)
    }

    /// Allocates pinned memory, if there is some and the driver gives it.
    pub fn try_buffer(&self, bytes: usize) -> Option<PinnedBuffer> {
        self.parts.pinned.try_take(bytes).ok().flatten()
    }

    /// The bytes of a chunk piece by piece, if all of them were received in pinned memory. They can be copied from there. Otherwise makes room for
    /// later answers.
    pub fn pinned<'a>(&self, encoded: &'a Encoded) -> Option<Vec<&'a [u8]>> {
        let (received, pieces) = (self.parts.received.as_ref()?, encoded.in_memory()?);
        if pieces.iter().all(|piece| received.holds(piece)) {
            return Some(pieces);
        }
        if encoded.bytes() >= Buffers::LEAST_BYTES {
            received.grow(encoded.bytes());
        }
        None
    }

    /// Chunks of at most this many bytes are packed.
    pub fn small_bytes(&self) -> usize {
        self.parts.packed_bytes as usize / Self::PACKED_SHARE
    }

    /// A slot of the packed buffer for a chunk of at most [`Uploader::small_bytes`]. `None` once the reader stops.
    ///
    /// # Errors
    /// What the driver says.
    pub fn slot(&mut self, bytes: usize) -> Result<Option<Slot>> {
        let fits = |packed: &PackedBuffer| packed.packing.fits(bytes);
        if !self.packed.as_ref().is_some_and(fits) {
            self.submit()?;
            let upload_pool = self.parts.upload_pool.clone();
            let allocation = upload_pool.take(self.parts.packed_bytes, 0, self);
            let Some(allocation) = allocation else { return Ok(None) };
            let Some(buffer) = self.buffer(self.parts.packed_bytes as usize)? else { return Ok(None) };
            self.packed = Some(PackedBuffer::new(buffer, allocation));
        }
        Ok(self.packed.as_ref().map(|packed| packed.packing.next(bytes)))
    }

    /// The memory of a slot.
    pub fn slot_bytes(&mut self, slot: &Slot) -> &mut [u8] {
        match &mut self.packed {
            Some(packed) => &mut packed.buffer.bytes_mut()[slot.range()],
            None => &mut [],
        }
    }

    /// Keeps the chunk in a slot. Returns its address on the GPU and the allocation around it.
    pub fn keep(&mut self, slot: &Slot) -> Option<(u64, Arc<Allocation>)> {
        let packed = self.packed.as_mut()?;
        packed.packing.keep(slot);
        Some((packed.allocation.address() + slot.range().start as u64, packed.allocation.clone()))
    }

    /// Makes all copies from now on wait for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<()> {
        self.stream.wait(event).map_err(Error::cuda("waiting for output memory"))
    }

    /// Enqueues a copy to device memory at `to`. `bytes` are in memory of [`Uploader::buffer`], [`Uploader::try_buffer`] or [`Uploader::pinned`], which is then
    /// either given to [`Uploader::add`] or kept until [`Uploader::flush`].
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The destination is device memory of the same size that nothing else uses until the copy is complete.
    pub unsafe fn copy(&self, bytes: &[u8], to: u64) -> Result<()> {
        self.parts.gpu.bind()?;
        // SAFETY: the duty of the caller.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying a chunk to the GPU"))
    }

    /// Adds the copies that were enqueued last to the pending submission, with the memory that they are made from.
    ///
    /// # Errors
    /// What the driver says.
    pub fn add(&mut self, source: Option<Source>, on_complete: OnComplete) -> Result<()> {
        self.pending.add(source, on_complete);
        if self.pending.is_full() {
            self.submit()?;
        }
        self.complete_to(Self::IN_FLIGHT);
        Ok(())
    }

    /// Waits until at most `bytes` bytes, or one submission, are in flight.
    pub fn complete_to(&mut self, bytes: usize) {
        while self.bytes > bytes && self.submissions.len() > 1 {
            self.complete_oldest();
        }
    }

    /// Submits the pending submission: records its event and queues its tasks. GPU workers wait for the event on their streams.
    ///
    /// # Errors
    /// What the driver says.
    pub fn submit(&mut self) -> Result<()> {
        let mut submission = std::mem::take(&mut self.pending);
        let mut copied = Ok(());
        let filled = self.packed.take_if(|packed| !packed.packing.is_empty());
        if let Some(PackedBuffer { buffer, allocation, packing }) = filled {
            // SAFETY: allocation and buffer are equally large, and nothing else uses the allocation.
            copied = unsafe { self.copy(&buffer.bytes()[..packing.used_bytes()], allocation.address()) };
            submission.sources.push(buffer.into());
        }
        if submission.is_empty() {
            return Ok(());
        }
        let arrived = copied.and_then(|()| self.parts.events.lend()).and_then(|event| {
            event.record(&self.stream).map_err(Error::cuda("recording an event"))?;
            Ok(Arc::new(event))
        });
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                // No copy may be in flight when the memory of the submission is given back.
                let _ = self.wait();
                let error = Arc::new(error);
                submission.fail(Error::Sticky(error.clone()));
                return Err(Error::Sticky(error));
            }
        };
        let mut tasks = std::mem::take(&mut submission.tasks);
        tasks.iter_mut().for_each(|task| task.arrives_with(&arrived));
        self.parts.queue.push(tasks);
        self.bytes += submission.bytes();
        self.submissions.push_back((arrived, submission));
        Ok(())
    }

    /// As [`Uploader::flush`], after an error: also waits for copies that were enqueued and not added.
    pub fn abort(&mut self) {
        self.flush();
        // If the wait fails, the context is broken and nothing runs any more.
        let _ = self.wait();
    }

    /// Completes the submissions whose copies are complete, without waiting.
    fn complete_arrived(&mut self) {
        // A failed copy has ended as well.
        while self.submissions.front().is_some_and(|(event, _)| event::has_happened(event).unwrap_or(true)) {
            self.complete_oldest();
        }
    }

    /// Waits for the oldest submission and completes it.
    fn complete_oldest(&mut self) {
        let Some((arrived, submission)) = self.submissions.pop_front() else { return };
        self.bytes -= submission.bytes();
        let _waiting = self.watchdog.waits(GpuWork::Copying, None, submission.chunks());
        if let Err(error) = event::wait_for(&self.parts.gpu, &arrived) {
            submission.fail(error);
        }
    }
}

impl Flush for Uploader {
    /// Submits everything and waits until the copies are complete.
    fn flush(&mut self) {
        // `submit` has told an error to the batches that it concerns.
        let _ = self.submit();
        // An empty packed buffer would take memory from large chunks.
        self.packed = None;
        while !self.submissions.is_empty() {
            self.complete_oldest();
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.abort();
    }
}
