//! The way of a thread's bytes to the GPU: pinned memory and copies from it, several in flight.
//!
//! Pieces are small and their memory is used again as soon as they have arrived, so that it stays in the host's cache: the
//! copy then costs the host's memory nothing, and reaches the rate of the bus instead of two thirds of it (benches/NOTES.md).

use crate::batch::Unit;
use crate::error::{Error, Result};
use crate::fetch::Blob;
use crate::fetch::cufile::Handle;
use crate::gpu::{Gpu, PinnedBuffer, PinnedPool};

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};

/// A thread's stream.
pub struct Sender {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    pinned: Arc<PinnedPool>,
    flights: VecDeque<Flight>,
    bytes: usize,
    staging: Option<Staging>,
}

/// A part of the memory that cuFile reads to, in two halves.
pub struct Staging {
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

impl Staging {
    /// What direct access needs offsets, sizes and addresses to be multiples of.
    pub const ALIGNMENT: u64 = 4096;

    /// Part number `number` of memory at `base`, with halves of so many bytes.
    pub fn new(base: u64, number: u64, bytes: u64) -> Self {
        Self { base, start: 2 * number * bytes, bytes, turn: 0, free: [None, None] }
    }
}

/// Copies that have not arrived yet.
struct Flight {
    arrived: Arc<CudaEvent>,
    /// What they are made from.
    buffer: Option<PinnedBuffer>,
    /// Who is finished when they have arrived.
    units: Vec<Unit>,
}

impl Sender {
    /// Larger chunks are read and copied in pieces of so many bytes, if nobody has to see them whole.
    pub const PIECE_BYTES: usize = 2 << 20;
    /// With more than this in flight it waits for the oldest.
    const IN_FLIGHT: usize = 2 * Self::PIECE_BYTES;
    /// The same for chunks that need no memory here, or little.
    const MOST_FLIGHTS: usize = 64;

    /// A sender with a stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, pinned: &Arc<PinnedPool>, staging: Option<Staging>) -> Result<Self> {
        let (stream, flights) = (gpu.stream()?, VecDeque::new());
        Ok(Self { gpu: gpu.clone(), stream, pinned: pinned.clone(), flights, bytes: 0, staging })
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
        let Some(staging) = &mut self.staging else { return Err(io::ErrorKind::Unsupported.into()) };
        let failed = |error: Error| io::Error::other(error.to_string());
        self.gpu.bind().map_err(failed)?;
        let mut done = range.start;
        while done < range.end {
            // The aligned range around what is wanted.
            let start = done - done % Staging::ALIGNMENT;
            let end = range.end.next_multiple_of(Staging::ALIGNMENT).min(start + staging.bytes);
            let half = staging.turn % 2;
            staging.turn += 1;
            if let Some(free) = &staging.free[half] {
                free.synchronize().map_err(Error::cuda("copying a chunk on the GPU")).map_err(failed)?;
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
                None => self.gpu.event().map_err(failed)?,
            };
            free.record(&self.stream).map_err(Error::cuda("recording an event")).map_err(failed)?;
            staging.free[half] = Some(free);
            done = until;
        }
        blob.check_unchanged()
    }

    /// Waits until everything so far is where it should be.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(Error::cuda("copying a chunk on the GPU"))
    }

    /// Takes pinned memory, waiting for some. `None` once the pool is closed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn buffer(&mut self, bytes: usize) -> Result<Option<PinnedBuffer>> {
        if let Some(buffer) = self.pinned.try_take(bytes)? {
            return Ok(Some(buffer));
        }
        // Whoever waits here holds nothing that others wait for.
        self.land();
        self.pinned.take(bytes)
    }

    /// What is sent from now on waits for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<()> {
        self.stream.wait(event).map_err(Error::cuda("waiting for output memory"))
    }

    /// Enqueues a copy out of memory that [`Sender::buffer`] gave, which is then either given to [`Sender::depart`] or
    /// kept until [`Sender::land`].
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The destination is device memory of that size that nothing else uses until the copy has arrived.
    pub unsafe fn copy(&self, bytes: &[u8], to: u64) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the duty of the caller.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying a chunk to the GPU"))
    }

    /// Lets the copies out of a buffer go. The event happens when they have arrived; then `units` are finished too.
    ///
    /// # Errors
    /// What the driver says.
    pub fn depart(&mut self, buffer: Option<PinnedBuffer>, units: Vec<Unit>) -> Result<Arc<CudaEvent>> {
        let arrived = self.gpu.event().and_then(|event| {
            event.record(&self.stream).map_err(Error::cuda("recording an event"))?;
            Ok(Arc::new(event))
        });
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                self.land();
                return Err(error);
            }
        };
        self.bytes += buffer.as_ref().map_or(0, |buffer| buffer.bytes().len());
        self.flights.push_back(Flight { arrived: arrived.clone(), buffer, units });
        while (self.bytes > Self::IN_FLIGHT || self.flights.len() > Self::MOST_FLIGHTS)
            && self.flights.len() > 1
        {
            self.land_oldest();
        }
        Ok(arrived)
    }

    /// Waits until everything has arrived.
    pub fn land(&mut self) {
        if let Err(error) = self.stream.synchronize().map_err(Error::cuda("copying chunks to the GPU")) {
            self.fail(error);
        }
        self.flights.clear();
        self.bytes = 0;
    }

    fn land_oldest(&mut self) {
        let Some(oldest) = self.flights.pop_front() else { return };
        self.bytes -= oldest.buffer.as_ref().map_or(0, |buffer| buffer.bytes().len());
        if let Err(error) = oldest.arrived.synchronize().map_err(Error::cuda("copying a chunk to the GPU")) {
            let error = Arc::new(error);
            oldest.units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        }
    }

    fn fail(&self, error: Error) {
        let error = Arc::new(error);
        let units = self.flights.iter().flat_map(|flight| &flight.units);
        units.for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
    }
}

/// Compares the beginning of what cuFile read to `address` with what the system reads: some file systems give it something else.
fn verify(blob: &dyn Blob, offset: u64, address: u64, bytes: usize) -> io::Result<()> {
    let mut theirs = vec![0; bytes.min(Staging::ALIGNMENT as usize)];
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

impl Drop for Sender {
    fn drop(&mut self) {
        self.land();
    }
}
