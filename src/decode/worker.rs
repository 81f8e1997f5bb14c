//! A worker thread: reads chunks, decodes them unless the GPU does, and uploads them on the GPU backend.

use super::chunk::Chunk;
use super::cpu::{CpuDecoder, Scratch};
use super::flush::Flush;
use super::job::Job;
use super::upload::{ChunkUpload, UploadContext, Uploader};
use crate::error::Result;

use std::sync::Arc;

/// What all workers of a reader share.
pub struct WorkerContext {
    /// Finds, reads and decodes chunks.
    pub decoder: CpuDecoder,
    /// Where workers put chunks.
    pub target: Target,
}

/// Where workers put chunks.
pub enum Target {
    /// CPU backend: into outputs in host memory.
    Host,
    /// GPU backend: to the GPU workers.
    Gpu(UploadContext),
}

/// What a worker thread keeps from job to job.
pub struct WorkerState {
    scratch: Scratch,
    /// GPU backend: copies to the GPU.
    uploader: Option<Uploader>,
    /// Whether the thread decodes chunks that the GPU could decode.
    decodes: bool,
}

impl WorkerState {
    /// The state of a thread before its first job. `decodes`: it decodes chunks that the GPU could decode.
    pub fn new(decodes: bool) -> Self {
        Self { scratch: Scratch::default(), uploader: None, decodes }
    }

    /// Sets the uploader that further jobs use.
    pub fn upload_with(&mut self, uploader: Uploader) {
        self.uploader = Some(uploader);
    }
}

impl Flush for WorkerState {
    /// Completes all copies to the GPU.
    fn flush(&mut self) {
        self.uploader.iter_mut().for_each(Uploader::flush);
    }
}

impl WorkerContext {
    /// Does one job. Returns whether it decoded a chunk.
    pub fn process(&self, job: Job, state: &mut WorkerState) -> bool {
        let chunk = match job {
            Job::Assemble(chunk, unit) => {
                self.decoder.assemble_cached(&chunk, &unit);
                return false;
            }
            Job::Read(chunk) => chunk,
        };
        if chunk.is_abandoned() {
            return false;
        }
        self.decoder.chunk_source.prefetch();
        let done = match &self.target {
            Target::Host => self.decoder.decode_and_assemble(&chunk, &mut state.scratch),
            Target::Gpu(context) => {
                let Some(uploader) = state.uploader.as_mut() else { return false };
                self.upload(&chunk, context, uploader, &mut state.scratch, state.decodes)
            }
        };
        if done.is_ok() {
            // The file is not needed any more.
            chunk.set_cache_entry(None);
        }
        done.unwrap_or_else(|error| {
            if let Err(error) = self.decoder.chunk_source.fetch_again(&chunk, error) {
                chunk.fail(error);
            }
            false
        })
    }

    fn upload(
        &self,
        chunk: &Arc<Chunk>,
        context: &UploadContext,
        uploader: &mut Uploader,
        scratch: &mut Scratch,
        decodes: bool,
    ) -> Result<bool> {
        let uploaded = ChunkUpload::new(&self.decoder, context, chunk).upload(uploader, scratch, decodes);
        if uploaded.is_err() {
            // Copies may still write to memory that is about to be given back.
            uploader.abort();
        }
        uploaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::chunk::Cached;
    use crate::decode::cpu::tests::{Output, Setup, Store, chunk};
    use crate::decode::device_pool::DevicePool;
    use crate::error::Error;

    const ELEMENTS: [u8; 8] = [1, 0, 2, 0, 3, 0, 4, 0];

    /// Does one job over a store whose middle chunk holds `encoded` bytes. Returns whether a chunk was decoded, and how many
    /// chunks were read.
    fn process(encoded: &[u8], target: Target, job: Job) -> (bool, u64) {
        let store = Setup::default().store();
        store.write(1, encoded);
        let Store { folder: _folder, decoder } = store;
        let workers = WorkerContext { decoder, target };
        let decoded = workers.process(job, &mut WorkerState::new(true));
        (decoded, workers.decoder.chunk_source.counters.chunks_read.get())
    }

    #[test]
    fn a_read_job_decodes_its_chunk() {
        let output = Output::new(8);
        let job = Job::Read(chunk(false, output.unit(0, 0, 4)));
        assert_eq!(process(&ELEMENTS, Target::Host, job), (true, 1));
        assert_eq!(output.bytes().unwrap(), ELEMENTS);
    }

    #[test]
    fn an_error_fails_every_batch_that_needs_the_chunk() {
        let (first, second, later) = (Output::new(8), Output::new(8), Output::new(8));
        let chunk = chunk(true, first.unit(0, 0, 4));
        assert!(chunk.add(second.unit(0, 0, 4)).is_none());
        assert_eq!(process(&ELEMENTS[1..], Target::Host, Job::Read(chunk.clone())), (false, 1));
        assert!(chunk.add(later.unit(0, 0, 4)).is_none());
        for output in [first, second, later] {
            let error = output.bytes().unwrap_err().to_string();
            assert!(error.contains("7 bytes instead of 8"), "{error}");
        }
    }

    #[test]
    fn a_chunk_that_only_failed_batches_need_is_not_read_unless_it_is_cached() {
        for (cached, expected) in [(false, (false, 0)), (true, (true, 1))] {
            let output = Output::new(8);
            let chunk = chunk(cached, output.unit(0, 0, 4));
            output.batch.fail(Error::panic("a test", &"failed before"));
            assert_eq!(process(&ELEMENTS, Target::Host, Job::Read(chunk)), expected, "cached: {cached}");
            assert!(output.bytes().is_err());
        }
    }

    #[test]
    fn an_assemble_job_reads_nothing() {
        let output = Output::new(4);
        let chunk = chunk(true, output.unit(2, 0, 2));
        let unit = chunk.ready(Cached::Host(ELEMENTS.to_vec().into())).pop().unwrap();
        let job = Job::Assemble(chunk, Box::new(unit));
        assert_eq!(process(&ELEMENTS, Target::Host, job), (false, 0));
        assert_eq!(output.bytes().unwrap(), ELEMENTS[4..]);
    }

    #[test]
    fn a_thread_that_got_no_uploader_leaves_the_chunk_that_failed_for_it() {
        let upload_pool = DevicePool::new(0, 1 << 10);
        let target = Target::Gpu(UploadContext { upload_pool, most_boxes: 1 });
        let output = Output::new(8);
        let chunk = chunk(false, output.unit(0, 0, 4));
        chunk.fail(Error::panic("a test", &"no stream"));
        assert_eq!(process(&ELEMENTS, target, Job::Read(chunk)), (false, 0));
        assert!(output.bytes().unwrap_err().to_string().contains("no stream"));
    }
}
