//! The way of a thread's bytes to the GPU: pinned memory and copies from it, several in flight.
//!
//! Pieces are small and their memory is used again as soon as they have arrived, so that it stays in the host's cache: the
//! copy then costs the host's memory nothing, and reaches the rate of the bus instead of two thirds of it (benches/NOTES.md).

use crate::batch::Unit;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, PinnedBuffer, PinnedPool};

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};

/// A thread's stream.
pub struct Sender {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    pinned: Arc<PinnedPool>,
    flights: VecDeque<Flight>,
    bytes: usize,
}

/// Copies that have not arrived yet.
struct Flight {
    arrived: Arc<CudaEvent>,
    /// What they are made from.
    buffer: PinnedBuffer,
    /// Who is finished when they have arrived.
    units: Vec<Unit>,
}

impl Sender {
    /// Larger chunks are read and copied in pieces of so many bytes, if nobody has to see them whole.
    pub const PIECE_BYTES: usize = 2 << 20;
    /// With more than this in flight it waits for the oldest.
    const IN_FLIGHT: usize = 2 * Self::PIECE_BYTES;

    /// A sender with a stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, pinned: &Arc<PinnedPool>) -> Result<Self> {
        let (stream, flights) = (gpu.stream()?, VecDeque::new());
        Ok(Self { gpu: gpu.clone(), stream, pinned: pinned.clone(), flights, bytes: 0 })
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
    pub fn depart(&mut self, buffer: PinnedBuffer, units: Vec<Unit>) -> Result<Arc<CudaEvent>> {
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
        self.bytes += buffer.bytes().len();
        self.flights.push_back(Flight { arrived: arrived.clone(), buffer, units });
        while self.bytes > Self::IN_FLIGHT && self.flights.len() > 1 {
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
        self.bytes -= oldest.buffer.bytes().len();
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

impl Drop for Sender {
    fn drop(&mut self) {
        self.land();
    }
}
