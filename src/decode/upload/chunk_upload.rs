//! What a worker does with a chunk on the GPU backend.

use super::destination::{Destination, Destinations, UploadContext};
use super::passing::{Interrupted, PassingChunk};
use super::submission::{OnComplete, Source};
use super::uploader::Uploader;
use crate::batch::Times;
use crate::codec::headers::copy_headers;
use crate::codec::{DecodePath, GpuChain, HeaderFormat, Prepared, Work};
use crate::dataset::ArrayInfo;
use crate::decode::chunk::Chunk;
use crate::decode::cpu::{CpuDecoder, Scratch, check_uncompressed_size};
use crate::decode::device_pool::Allocation;
use crate::decode::gpu_task::{GpuTask, OnDevice, Payload, misalignment};
use crate::decode::verified::Identity;
use crate::error::{Context, Error, Result, log_once};
use crate::fetch::Encoded;
use crate::fetch::cufile::Handle;
use crate::gpu::PinnedBuffer;
use crate::trace::{self, Stage};

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

/// The upload of one chunk.
pub struct ChunkUpload<'a> {
    decoder: &'a CpuDecoder,
    chunk: &'a Arc<Chunk>,
    array: &'a ArrayInfo,
    destinations: Destinations<'a>,
}

/// The bytes of a chunk in pinned memory or already on the GPU.
struct Filled {
    /// How the GPU decodes the bytes.
    work: Work,
    /// Where they start in their slot.
    start: u64,
    times: Times,
    /// Whether it is the GPU that decodes them.
    by_gpu: bool,
    identity: Option<Identity>,
}

/// An encoded chunk whose copy to the GPU was enqueued.
struct Copied {
    /// How the GPU decodes it.
    work: Work,
    times: Times,
    /// The last of the pieces that it was read in.
    last_piece: Option<PinnedBuffer>,
    /// Whether there are copies from the memory in which the host has read its headers.
    keeps_source: bool,
}

impl Filled {
    fn new(work: Work, times: Times) -> Self {
        Self { work, start: 0, times, by_gpu: false, identity: None }
    }
}

impl<'a> ChunkUpload<'a> {
    /// The upload of `chunk`.
    pub fn new(decoder: &'a CpuDecoder, context: &'a UploadContext, chunk: &'a Arc<Chunk>) -> Self {
        let (array, conversion) = (decoder.array(chunk), decoder.conversion(chunk));
        let bytes = array.read_chunk_bytes();
        Self { decoder, chunk, array, destinations: Destinations { context, chunk, conversion, bytes } }
    }

    /// Reads the chunk and uploads it, decoded or to be decoded by the GPU. `decodes`: this thread decodes chunks that the GPU
    /// could decode. Returns whether this thread decoded the chunk. Does nothing once the reader stops.
    ///
    /// # Errors
    /// Chunks that cannot be found, read or decoded, and what the driver says. Copies of the chunk may still be in flight then.
    pub fn upload(&self, uploader: &mut Uploader, scratch: &mut Scratch, decodes: bool) -> Result<bool> {
        let (encoded, at) = self.decoder.chunk_source.find(self.chunk)?;
        let Some(encoded) = encoded else {
            if self.array.fill_element().is_some() {
                let missing = GpuTask::new(self.chunk.clone(), Payload::Missing, at);
                uploader.add(None, self.with_units(missing, Times::default()).into())?;
                return Ok(false);
            }
            self.upload_elements(uploader, at, |into| {
                self.array.fill(into);
                Ok(Times::default())
            })?;
            return Ok(false);
        };
        let decode_path = &self.decoder.parts[self.chunk.part()].decode_path;
        if let (DecodePath::Gpu(chain), false) = (decode_path, decodes)
            && encoded.bytes() <= chain.encoded_bound()
        {
            if let Some(work) = chain.uncompressed() {
                self.upload_uncompressed(&encoded, work, uploader, at)?;
                return Ok(false);
            }
            if self.upload_encoded(&encoded, chain, uploader, &at)? {
                return Ok(false);
            }
        }
        self.upload_elements(uploader, at.clone(), |into| {
            self.decoder.decode(self.chunk, &encoded, into, scratch, &at)
        })?;
        Ok(true)
    }

    /// Uploads elements that this thread has decoded or filled in.
    fn upload_elements(
        &self,
        uploader: &mut Uploader,
        at: Context,
        fill: impl FnOnce(&mut [u8]) -> Result<Times>,
    ) -> Result<()> {
        let work = Work::none(self.array.read_chunk_bytes());
        if work.bytes as usize <= uploader.small_bytes() {
            return self
                .upload_small(uploader, work.bytes, &at, |into| Ok(Some(Filled::new(work, fill(into)?))))
                .map(|_| ());
        }
        let Some(destination) = self.destinations.find(uploader, &work)? else { return Ok(()) };
        let Some(mut buffer) = uploader.buffer(work.bytes as usize)? else { return Ok(()) };
        let times = fill(buffer.bytes_mut())?;
        // SAFETY: the destination has the size of the chunk's elements and belongs to the chunk alone.
        unsafe { uploader.copy(buffer.bytes(), destination.address())? };
        self.submit(uploader, Some(buffer.into()), destination, Filled::new(work, times), at)
    }

    /// Uploads a chunk that is not encoded, piece by piece to where its elements belong.
    fn upload_uncompressed(
        &self,
        encoded: &Encoded,
        work: Work,
        uploader: &mut Uploader,
        at: Context,
    ) -> Result<()> {
        check_uncompressed_size(encoded.bytes(), work.bytes, &at)?;
        let start = misalignment(&work);
        if work.bytes + start <= uploader.small_bytes() as u64 && uploader.cufile(encoded).is_none() {
            let fill = |into: &mut [u8]| {
                encoded.read(&mut into[start as usize..], &at)?;
                let times = Times { fetched: Some(Instant::now()), ..Times::default() };
                Ok(Some(Filled { start, by_gpu: true, ..Filled::new(work, times) }))
            };
            return self.upload_small(uploader, encoded.bytes() + start, &at, fill).map(|_| ());
        }
        let Some(destination) = self.destinations.find(uploader, &work)? else { return Ok(()) };
        let address = destination.address();
        let uploaded = match uploader.cufile(encoded) {
            // SAFETY: the destination has the size of the chunk and belongs to the chunk alone.
            Some(handle) => unsafe {
                self.read_with_cufile(uploader, encoded, handle, address, None, &at).map(|()| None)
            },
            // SAFETY: as above.
            None => unsafe { self.upload_pieces(encoded, address, uploader, &at) },
        };
        if uploaded.is_err() {
            // The destination is given back, and a late copy could overwrite another chunk there.
            uploader.abort();
        }
        let source = uploaded?;
        let times = Times { fetched: Some(Instant::now()), ..Times::default() };
        let filled = Filled { by_gpu: true, ..Filled::new(work, times) };
        self.submit(uploader, source, destination, filled, at)
    }

    /// Reads a chunk and copies it piece by piece to `address`. Stops early once the reader stops. Returns the source of copies that was not added
    /// to the uploader yet: a chunk that was received in pinned memory is copied from there.
    ///
    /// # Safety
    /// The destination has the size of the chunk and belongs to the chunk alone until the copies are complete.
    unsafe fn upload_pieces(
        &self,
        encoded: &Encoded,
        address: u64,
        uploader: &mut Uploader,
        at: &Context,
    ) -> Result<Option<Source>> {
        let bytes = encoded.bytes();
        let mut start = 0;
        if let Some(pieces) = uploader.pinned(encoded) {
            for piece in pieces {
                // SAFETY: the duty of the caller.
                unsafe { uploader.copy(piece, address + start)? };
                start += piece.len() as u64;
            }
            self.decoder.chunk_source.counters.bytes_received_pinned.add(bytes);
            return Ok(Some(Source::Fetched(encoded.clone())));
        }
        while start < bytes {
            let end = bytes.min(start + Uploader::PIECE_BYTES as u64);
            let Some(mut buffer) = uploader.buffer((end - start) as usize)? else { return Ok(None) };
            encoded.read_from(start, buffer.bytes_mut(), at)?;
            // SAFETY: the duty of the caller.
            unsafe { uploader.copy(buffer.bytes(), address + start)? };
            uploader.add(Some(buffer.into()), OnComplete::Piece)?;
            start = end;
        }
        Ok(None)
    }

    /// Uploads a chunk that the GPU decodes. The host reads its headers on the way to plan the work of the GPU. Returns false if
    /// the GPU cannot decode the chunk.
    fn upload_encoded(
        &self,
        encoded: &Encoded,
        chain: &GpuChain,
        uploader: &mut Uploader,
        at: &Context,
    ) -> Result<bool> {
        let bytes = encoded.bytes();
        // Inner chunks of one file differ in their coordinates.
        let identity = |work: &Work| {
            (work.zstd_blocks() > 0)
                .then(|| Identity::new(self.chunk.part(), &self.chunk.read_chunk, encoded.version()))
        };
        if bytes as usize <= uploader.small_bytes() && uploader.cufile(encoded).is_none() {
            return self.upload_small(uploader, bytes, at, |into| {
                encoded.read(into, at)?;
                let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
                let Some((part, work)) = self.prepare(chain, into, at)? else { return Ok(None) };
                // The part that the GPU decodes has to start at an aligned address, as the slot does.
                into.copy_within(part, 0);
                Ok(Some(Filled { by_gpu: true, identity: identity(&work), ..Filled::new(work, times) }))
            });
        }
        let Some(allocation) = self.destinations.allocate(bytes, uploader)? else { return Ok(true) };
        let in_pieces = bytes > Uploader::PIECE_BYTES as u64 && uploader.cufile(encoded).is_none();
        let headers = chain.headers().filter(|_| in_pieces);
        let (source, copied) = match uploader.pinned(encoded).as_deref() {
            // The host reads the headers of all of it.
            Some(&[received]) => {
                let copied = catch_unwind(AssertUnwindSafe(|| {
                    self.copy_received(received, chain, uploader, &allocation, at)
                }));
                (Source::Fetched(encoded.clone()), copied)
            }
            _ => {
                let Some(mut buffer) = uploader.buffer(bytes as usize)? else { return Ok(true) };
                let copied = catch_unwind(AssertUnwindSafe(|| match headers {
                    Some(format) => {
                        let chain = (chain, format);
                        self.copy_pieces(encoded, chain, uploader, &allocation, &mut buffer, at)
                    }
                    None => self.copy_encoded(encoded, chain, uploader, &allocation, &mut buffer, at),
                }));
                (buffer.into(), copied)
            }
        };
        if !matches!(copied, Ok(Ok(Some(_)))) {
            // Allocation and source are about to be given back.
            uploader.abort();
        }
        let copied = copied.unwrap_or_else(|payload| resume_unwind(payload));
        let Some(Copied { work, times, last_piece, keeps_source }) = copied? else { return Ok(false) };
        let source = match (last_piece, keeps_source) {
            (None, keeps) => keeps.then_some(source),
            (Some(piece), false) => Some(piece.into()),
            (Some(piece), true) => {
                uploader.add(Some(piece.into()), OnComplete::Piece)?;
                Some(source)
            }
        };
        let (address, allocation, identity) = (allocation.address(), Arc::new(allocation), identity(&work));
        let on_device =
            Payload::OnDevice(OnDevice { address, allocation: Some(allocation), work, arrived: None });
        let task =
            GpuTask { identity, by_gpu: true, ..GpuTask::new(self.chunk.clone(), on_device, at.clone()) };
        uploader.add(source, self.with_units(task, times).into())?;
        // Of a chunk in pieces little may be left, which would wait for the next one.
        if headers.is_some() {
            uploader.submit()?;
        }
        Ok(true)
    }

    /// Copies an encoded chunk that was received in pinned memory to `allocation`. `None` if the GPU cannot decode the chunk.
    fn copy_received(
        &self,
        received: &[u8],
        chain: &GpuChain,
        uploader: &Uploader,
        allocation: &Allocation,
        at: &Context,
    ) -> Result<Option<Copied>> {
        let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
        let Some((part, work)) = self.prepare(chain, received, at)? else { return Ok(None) };
        let copied = if chain.is_verified_by_host() { &received[part] } else { received };
        // SAFETY: the allocation has the size of the chunk and belongs to the chunk alone.
        unsafe { uploader.copy(copied, allocation.address())? };
        self.decoder.chunk_source.counters.bytes_received_pinned.add(received.len() as u64);
        Ok(Some(Copied { work, times, last_piece: None, keeps_source: true }))
    }

    /// Reads an encoded chunk to `buffer` and copies it to `allocation`. `None` if the GPU cannot decode the chunk.
    fn copy_encoded(
        &self,
        encoded: &Encoded,
        chain: &GpuChain,
        uploader: &mut Uploader,
        allocation: &Allocation,
        buffer: &mut PinnedBuffer,
        at: &Context,
    ) -> Result<Option<Copied>> {
        let bytes = encoded.bytes();
        let mut start = 0;
        if let Some(handle) = uploader.cufile(encoded) {
            let to = allocation.address();
            // The host reads the chunk's headers from the buffer.
            match chain.headers() {
                // SAFETY: allocation and buffer have the size of the chunk and belong to the chunk alone.
                Some(format) => unsafe {
                    self.read_with_cufile(uploader, encoded, handle, to, None, at)?;
                    uploader.read_headers(to, buffer, format, chain.area_bytes())?;
                },
                None => {
                    // SAFETY: as above.
                    unsafe {
                        self.read_with_cufile(uploader, encoded, handle, to, Some(buffer.bytes_mut()), at)?;
                    }
                    uploader.wait()?;
                }
            }
            start = bytes;
        }
        while start < bytes {
            let end = bytes.min(start + Uploader::PIECE_BYTES as u64);
            let piece = &mut buffer.bytes_mut()[start as usize..end as usize];
            encoded.read_from(start, piece, at)?;
            if !chain.is_verified_by_host() {
                // SAFETY: the allocation has the size of the chunk and belongs to the chunk alone.
                unsafe { uploader.copy(piece, allocation.address() + start)? };
            }
            start = end;
        }
        let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
        let Some((part, work)) = self.prepare(chain, buffer.bytes(), at)? else { return Ok(None) };
        if chain.is_verified_by_host() {
            // SAFETY: as above.
            unsafe { uploader.copy(&buffer.bytes()[part], allocation.address())? };
        }
        Ok(Some(Copied { work, times, last_piece: None, keeps_source: true }))
    }

    /// Reads an encoded chunk piece by piece, copies it to `allocation` and its headers to `buffer`. `None` if the GPU cannot decode the chunk.
    fn copy_pieces(
        &self,
        encoded: &Encoded,
        (chain, format): (&GpuChain, HeaderFormat),
        uploader: &mut Uploader,
        allocation: &Allocation,
        buffer: &mut PinnedBuffer,
        at: &Context,
    ) -> Result<Option<Copied>> {
        // SAFETY: the allocation has the size of the chunk and belongs to the chunk alone.
        let mut pieces = unsafe { PassingChunk::new(uploader, encoded, allocation.address(), at) };
        let passed = copy_headers(format, chain.area_bytes(), &mut pieces, buffer.bytes_mut())
            .and_then(|()| pieces.pass(buffer.bytes_mut()));
        match passed {
            Ok(()) => {}
            Err(Interrupted::Failed(error)) => return Err(*error),
            Err(Interrupted::LooksBack) => {
                drop(pieces);
                uploader.abort();
                return self.copy_encoded(encoded, chain, uploader, allocation, buffer, at);
            }
        }
        let times = Times { fetched: Some(Instant::now()), decoded: None, by_gpu: true };
        let Some((_, work)) = self.prepare(chain, buffer.bytes(), at)? else { return Ok(None) };
        let (last_piece, keeps_source) = pieces.into_last();
        Ok(Some(Copied { work, times, last_piece, keeps_source }))
    }

    /// Reads the chunk with cuFile.
    ///
    /// # Safety
    /// As for [`Uploader::read`].
    unsafe fn read_with_cufile(
        &self,
        uploader: &mut Uploader,
        encoded: &Encoded,
        handle: &Handle,
        to: u64,
        host: Option<&mut [u8]>,
        at: &Context,
    ) -> Result<()> {
        let _range = trace::range(Stage::Fetch, encoded.bytes());
        // SAFETY: the duties of the caller.
        unsafe { uploader.read(encoded, handle, to, host) }
            .map_err(|source| Error::Io { at: at.clone(), source })?;
        self.decoder.chunk_source.counters.bytes_read_gds.add(encoded.bytes());
        Ok(())
    }

    /// Uploads a small chunk together with others. Returns false if `fill` returns `None`.
    fn upload_small(
        &self,
        uploader: &mut Uploader,
        bytes: u64,
        at: &Context,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<Filled>>,
    ) -> Result<bool> {
        let Some(slot) = uploader.slot(bytes as usize)? else { return Ok(true) };
        let Some(filled) = fill(uploader.slot_bytes(&slot))? else { return Ok(false) };
        let Some((address, allocation)) = uploader.keep(&slot) else { return Ok(true) };
        let Filled { work, start, times, by_gpu, identity } = filled;
        let on_device =
            OnDevice { address: address + start, allocation: Some(allocation), work, arrived: None };
        let task = GpuTask::new(self.chunk.clone(), Payload::OnDevice(on_device), at.clone());
        let task = self.with_units(GpuTask { by_gpu, identity, ..task }, times);
        uploader.add(None, task.into())?;
        Ok(true)
    }

    /// Adds the last copy of a chunk to the uploader, with what happens when it is complete: a chunk that was copied to an output finishes its units,
    /// any other is taken by a GPU worker.
    fn submit(
        &self,
        uploader: &mut Uploader,
        source: Option<Source>,
        destination: Destination,
        filled: Filled,
        at: Context,
    ) -> Result<()> {
        let Filled { work, times, by_gpu, .. } = filled;
        let address = destination.address();
        let allocation = match destination {
            Destination::Output(_) => {
                let mut units = self.chunk.take(usize::MAX);
                units.iter_mut().for_each(|unit| unit.times = times);
                if by_gpu {
                    self.decoder.chunk_source.counters.decoded(work.bytes, true);
                }
                return uploader.add(source, OnComplete::PendingUnits(units));
            }
            Destination::Cache(_) => None,
            Destination::UploadPool(allocation, _) => Some(Arc::new(allocation)),
        };
        let on_device = Payload::OnDevice(OnDevice { address, allocation, work, arrived: None });
        let task = GpuTask { by_gpu, ..GpuTask::new(self.chunk.clone(), on_device, at) };
        uploader.add(source, self.with_units(task, times).into())
    }

    /// Gives a task the units that wait for the chunk now. Units that are added later are assembled from the chunk cache.
    fn with_units(&self, mut task: GpuTask, times: Times) -> GpuTask {
        task.units = self.chunk.take(self.destinations.context.most_boxes);
        task.units.iter_mut().for_each(|unit| unit.times = times);
        task.arrived = times.fetched;
        task
    }

    /// The part of an encoded chunk that the GPU decodes, and how. `None` if the GPU cannot.
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
}
