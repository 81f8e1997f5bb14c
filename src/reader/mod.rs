//! Opens a store and hands its samples over in batches, in order.
//!
//! A reader is made in steps, each with a file of its own:
//!
//! ```text
//! arguments --> Setup        what is read, in which order, how it is decoded        setup, outputs, chunk_reuse
//!          --> MemoryPlan    batches in flight, threads, sizes of pools and caches  memory_needs, memory_plan
//!          --> Device        GPU backend: the GPU and its libraries                 device
//!          --> Running       the threads                                            running
//! ```
//!
//! [`Status`] tells what a running reader has done; a [checkpoint](checkpoint) holds its position. The threads of a reader:
//!
//! ```text
//! submit --> planner --> jobs --> decoders --> (CPU backend) outputs
//!               |          |          '-------------.
//!               |          '----> I/O threads --> (GPU backend) uploaded chunks --> GPU workers --> outputs
//!               '-- units whose chunk is cached -----------------------------------^
//! next_batch <-- the oldest submitted batch, once its last unit is finished
//! ```
//!
//! These threads begin when the first batch is submitted (`Running::start` in `running.rs`) and end when the reader goes, before the device that they
//! use. So do those that fetch from URLs (`zarr net` in `fetch/scheduler.rs`) and that write the disk cache (`fetch/disk_cache/cache.rs`).
//!
//! A unit is what one batch needs of one read chunk. Chunks of all submitted batches are in flight at once, each chunk once for
//! all batches that need it while it is in flight or cached; batches are handed over in order. Memory is bounded by the
//! submitted batches (outputs), the pinned pool (bytes on their way to the GPU), the upload pool (bytes that have arrived there),
//! the arenas of GPU workers (decoding) and the chunk cache (decoded chunks for later batches).

mod channel_stack;
mod checkpoint;
mod checks;
mod choice;
mod chunk_reuse;
mod device;
mod dimension_offsets;
mod domains;
mod memory_needs;
pub mod memory_plan;
mod outputs;
mod running;
mod selection;
mod setup;
mod source_info;
mod status;

pub use outputs::Output;
pub use setup::{Setup, decode_path};
pub use status::Status;

use crate::assemble::OutputMemory;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::options::Arguments;
use crate::sampler::{Drawn, Order};
use crate::trace::{self, Stage};

use checkpoint::Cursor;
use checks::check_disk_cache;
use device::Device;
use memory_plan::MemoryPlan;
use running::{Running, Start};

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::CudaStream;

/// A reader of one dataset.
pub struct Reader {
    setup: Setup,
    plan: MemoryPlan,
    /// Where the next batch that is submitted comes in the order of samples.
    cursor: Cursor,
    status: Arc<Status>,
    /// Goes before the device that it runs on.
    running: Option<Running>,
    device: Option<Device>,
    /// The batches in flight, the oldest first.
    submitted: VecDeque<Arc<Batch>>,
    /// Samples of the batch that was handed over last.
    current: Vec<Drawn>,
    failed: Option<Arc<Error>>,
    /// The process that opened the reader; threads and CUDA do not survive a fork.
    process: u32,
}

impl Reader {
    /// Opens the store and checks everything that can be checked without reading a chunk. Starts no thread.
    ///
    /// # Errors
    /// Arguments and stores that cannot be read, a GPU or nvCOMP that is needed and not there, and budgets that
    /// cannot hold the least that is needed.
    pub fn open(arguments: &Arguments) -> Result<Self> {
        let setup = Setup::new(arguments)?;
        if let Some(options) = &setup.options.disk_cache {
            check_disk_cache(options)?;
        }
        let (device, plan) = match setup.options.device {
            None => (None, setup.plan_on_cpu()?),
            Some(ordinal) => {
                let (device, plan) = Device::open(&setup, ordinal)?;
                setup.log_decode_paths();
                (Some(device), plan)
            }
        };
        Ok(Self {
            cursor: setup.start.clone(),
            status: Arc::new(Status::new(
                setup.start.clone(),
                setup.identity.clone(),
                setup.channels.clone(),
            )),
            setup,
            plan,
            device,
            running: None,
            submitted: VecDeque::new(),
            current: vec![],
            failed: None,
            process: std::process::id(),
        })
    }

    /// One for each array, or a single one if they are stacked, and one for the samples' indices if they are asked for.
    pub fn outputs(&self) -> &[Output] {
        &self.setup.outputs
    }

    /// Counters, memory in use and position, for any thread.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// The order of samples.
    pub fn order(&self) -> &Order {
        &self.cursor.order
    }

    /// How many batches should be submitted ahead of the one that is asked for.
    pub fn depth(&self) -> u64 {
        self.plan.depth
    }

    /// GPU backend: the stream that orders the consumer's allocations.
    pub fn allocation_stream(&self) -> Option<&Arc<CudaStream>> {
        self.device.as_ref().map(|device| device.allocation.stream())
    }

    /// Lends the memory of the next batch. The first call starts the threads.
    ///
    /// # Errors
    /// An earlier error, or threads and GPU memory that cannot be had.
    ///
    /// # Safety
    /// Each address points to the memory of `batch_size` samples of its output, on the host or on the GPU as the
    /// backend says, which nobody else touches until [`Reader::next_batch`] returned the batch or the reader was
    /// dropped.
    pub unsafe fn submit(&mut self, addresses: &[usize]) -> Result<()> {
        self.check_failed()?;
        if self.running.is_none() {
            let running = Running::start(&Start {
                setup: &self.setup,
                plan: &self.plan,
                device: self.device.as_ref(),
                cursor: &self.cursor,
                status: &self.status,
            });
            self.running = Some(running.map_err(|error| self.fail(Arc::new(error)))?);
        }
        let samples = self.cursor.order.batch(self.cursor.batch);
        let outputs: Vec<OutputMemory> = self
            .outputs()
            .iter()
            .zip(addresses)
            .map(|(output, &address)| OutputMemory {
                address: address as u64,
                bytes: output.sample_bytes() * samples.len() as u64,
            })
            .collect();
        if self.setup.indexed
            && let Some(output) = outputs.last()
        {
            let indices: Vec<i64> =
                samples.iter().flat_map(|drawn| self.setup.domains.index(drawn.sample)).collect();
            // SAFETY: the memory of the last output, which has this size, is lent to the reader.
            unsafe { self.write_indices(&indices, output) }?;
        }
        let writable = self.device.as_ref().map(Device::record_allocation).transpose()?;
        if let Some(running) = &self.running {
            let number = self.cursor.batch;
            let batch = Batch::new(number, samples, outputs, writable, running.progress.clone());
            self.submitted.push_back(batch.clone());
            self.cursor.batch += 1;
            running.plan(batch);
        }
        Ok(())
    }

    /// Writes the indices of a batch to its last output.
    ///
    /// # Safety
    /// The output has their size and is writable.
    unsafe fn write_indices(&self, indices: &[i64], output: &OutputMemory) -> Result<()> {
        match &self.device {
            // SAFETY: the caller's duty.
            Some(device) => unsafe { device.write_indices(indices, output) },
            None => {
                // SAFETY: the caller's duty.
                unsafe {
                    let address = output.address as *mut i64;
                    std::ptr::copy_nonoverlapping(indices.as_ptr(), address, indices.len());
                };
                Ok(())
            }
        }
    }

    /// Waits for the oldest submitted batch; its values are in memory then.
    ///
    /// # Errors
    /// The first error of any of its chunks. An error stays: later calls give it again.
    pub fn next_batch(&mut self) -> Result<()> {
        self.check_failed()?;
        let Some(batch) = self.submitted.pop_front() else {
            let message = "next_batch was called before submit".to_string();
            return Err(Error::Panic { place: "the operator".into(), message });
        };
        let running = &self.running;
        let waits = !batch.is_ready();
        running.iter().for_each(|running| running.jobs.wanted(waits));
        let _range = trace::range(Stage::WaitForBatch, batch.number);
        let hopeless = || running.as_ref().and_then(Running::stuck);
        let handed_over = batch.wait(hopeless);
        // Indices were copied on the stream that recorded `writable`, before it: waiting for that event waits for them.
        let indexed = batch.writable.as_ref().filter(|_| self.setup.indexed && handed_over.is_ok());
        let copied =
            indexed.map_or(Ok(()), |event| event.synchronize().map_err(Error::cuda("copying indices")));
        running.iter().filter(|_| waits).for_each(|running| running.jobs.handed_over());
        // Checked after the batch's last look-up, so that a store that went away before one of them is noticed.
        let part = |(array, part): &(usize, usize)| self.setup.dataset.part(*array, *part).check_present();
        let present = || batch.absent().iter().try_for_each(part);
        match handed_over.and_then(|()| copied.and_then(|()| present()).map_err(Arc::new)) {
            Ok(()) => {
                self.status.counters.batches.add(1);
                self.status.counters.samples_delivered.add(batch.samples.len() as u64);
                self.status.handed_over(self.cursor.batch - self.submitted.len() as u64);
                self.current.clone_from(&batch.samples);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Names a sample of the batch that was handed over last: the array, or all arrays of a stack, and the indices it
    /// came from.
    pub fn source_info(&self, output: usize, index: usize) -> Option<String> {
        let sample = self.current.get(index)?.sample;
        Some(self.setup.source_info(output, sample))
    }

    /// The position after the batch that was handed over last, for a checkpoint.
    pub fn save_state(&self) -> Vec<u8> {
        self.status.position().to_string().into_bytes()
    }

    /// Continues from a saved position. If it was saved with other reader shards or batches, the rest of its epoch is
    /// divided among the reader shards and batches of this reader.
    ///
    /// # Errors
    /// A state of another reader, or one that comes after the first `submit`.
    pub fn restore_state(&mut self, state: &[u8]) -> Result<()> {
        if self.running.is_some() {
            return Err(checkpoint::refused("the reader has started already".into()));
        }
        self.cursor = self.cursor.restore(&self.setup.identity, state)?;
        self.status.restored(self.cursor.clone());
        Ok(())
    }

    fn check_failed(&self) -> Result<()> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        self.failed.as_ref().map_or(Ok(()), |error| Err(Error::Sticky(error.clone())))
    }

    fn fail(&mut self, error: Arc<Error>) -> Error {
        self.failed = Some(error.clone());
        Error::Sticky(error)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has neither the threads nor the GPU's context: there is nothing to wait for or to free.
            std::mem::forget((self.running.take(), self.device.take(), std::mem::take(&mut self.submitted)));
        }
    }
}
