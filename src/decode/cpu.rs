//! The CPU side: decodes chunks in host memory, and on the CPU backend assembles units from them.

use super::chunk::{Cached, Chunk};
use super::chunk_source::ChunkSource;
use super::part::PartPlans;
use crate::assemble::Conversion;
use crate::assemble::host::{self, Source};
use crate::batch::{PendingUnit, Times};
use crate::codec::{self, DecodePath, GpuChain, Unpacker};
use crate::dataset::ArrayInfo;
use crate::error::{Context, Error, Result};
use crate::fetch::Encoded;
use crate::memory::{self, Refused};
use crate::trace::{self, Stage};

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Decodes the chunks of a reader on the calling thread.
pub struct CpuDecoder {
    /// Finds the encoded bytes of chunks.
    pub chunk_source: ChunkSource,
    /// How the chunks are decoded.
    pub parts: Arc<PartPlans>,
}

/// Host memory that a thread keeps from chunk to chunk.
#[derive(Default)]
pub struct Scratch {
    encoded: Vec<u8>,
    decoded: Vec<u8>,
    unpacker: Unpacker,
}

impl CpuDecoder {
    /// The array of a chunk.
    pub fn array(&self, chunk: &Chunk) -> &ArrayInfo {
        self.chunk_source.array(chunk)
    }

    /// How elements of a chunk become output elements.
    pub fn conversion(&self, chunk: &Chunk) -> &Conversion {
        &self.parts[chunk.part()].conversion
    }

    /// CPU backend: reads a chunk, decodes it and assembles the units that wait for it. Returns whether there was something to
    /// decode.
    ///
    /// # Errors
    /// Chunks that cannot be found, read or decoded.
    pub fn decode_and_assemble(&self, chunk: &Chunk, scratch: &mut Scratch) -> Result<bool> {
        let (encoded, at) = self.chunk_source.find(chunk)?;
        match chunk.allocation() {
            Some(_) => self.decode_to_cache(chunk, encoded.as_ref(), scratch, &at)?,
            None => self.decode_to_outputs(chunk, encoded.as_ref(), scratch, &at)?,
        }
        Ok(encoded.is_some())
    }

    /// Decodes a chunk for the chunk cache.
    fn decode_to_cache(
        &self,
        chunk: &Chunk,
        encoded: Option<&Encoded>,
        scratch: &mut Scratch,
        at: &Context,
    ) -> Result<()> {
        let array = self.array(chunk);
        let zeroed = || memory::zeroed(array.read_chunk_bytes()).map_err(no_memory(at));
        let (cached, times) = match encoded {
            None if array.fill_element().is_some() => (Cached::Missing, Times::default()),
            None => {
                let mut filled = zeroed()?;
                array.fill(&mut filled);
                (Cached::Host(filled.into()), Times::default())
            }
            Some(encoded) => {
                let mut decoded = zeroed()?;
                let times = self.decode(chunk, encoded, &mut decoded, scratch, at)?;
                (Cached::Host(decoded.into()), times)
            }
        };
        for mut unit in chunk.ready(cached) {
            unit.times = times;
            self.assemble_cached(chunk, &unit);
        }
        Ok(())
    }

    /// Decodes a chunk that is not cached. No units are added to it any more, and its units are taken only when nothing can fail.
    fn decode_to_outputs(
        &self,
        chunk: &Chunk,
        encoded: Option<&Encoded>,
        scratch: &mut Scratch,
        at: &Context,
    ) -> Result<()> {
        let array = self.array(chunk);
        let bytes = array.read_chunk_bytes() as usize;
        if encoded.is_none() && array.fill_element().is_some() {
            for unit in chunk.take(usize::MAX) {
                self.assemble(chunk, &unit, None);
            }
            return Ok(());
        }
        if let Some(encoded) = encoded
            && let Some((address, _)) = chunk.direct_output(self.conversion(chunk), bytes as u64)
        {
            // SAFETY: the output has space for the whole chunk at this address, and only this unit writes there. The output is
            // lent to this reader until the unit is finished.
            let output = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) };
            let times = self.decode(chunk, encoded, output, scratch, at)?;
            chunk.take(usize::MAX).iter_mut().for_each(|unit| unit.times = times);
            return Ok(());
        }
        let mut decoded = std::mem::take(&mut scratch.decoded);
        memory::grow(&mut decoded, bytes as u64).map_err(no_memory(at))?;
        let done = match encoded {
            Some(encoded) => self.decode(chunk, encoded, &mut decoded[..bytes], scratch, at),
            None => {
                array.fill(&mut decoded[..bytes]);
                Ok(Times::default())
            }
        };
        if let Ok(times) = done {
            for mut unit in chunk.take(usize::MAX) {
                unit.times = times;
                self.assemble(chunk, &unit, Some(&decoded[..bytes]));
            }
        }
        scratch.decoded = decoded;
        done.map(|_| ())
    }

    /// CPU backend: assembles a unit from a chunk in the chunk cache.
    pub fn assemble_cached(&self, chunk: &Chunk, unit: &PendingUnit) {
        match chunk.cached() {
            Some(Cached::Missing) => self.assemble(chunk, unit, None),
            Some(Cached::Host(decoded)) => self.assemble(chunk, unit, Some(&decoded)),
            Some(Cached::Device { .. }) | None => {
                let message = "a cached chunk is not in host memory".into();
                unit.batch.fail(Error::Panic { place: "a worker".into(), message });
            }
        }
    }

    /// CPU backend: assembles a unit from the elements of a decoded chunk, or from the fill value.
    fn assemble(&self, chunk: &Chunk, unit: &PendingUnit, decoded: Option<&[u8]>) {
        let array = self.array(chunk);
        let fill = Source::Fill(array.fill_element().unwrap_or_default());
        let source = decoded.map_or(fill, Source::Decoded);
        let output = unit.batch.outputs[unit.output];
        // SAFETY: the outputs of the CPU backend are host memory, lent until the batch is handed over, which waits
        // for this unit; plans give no element to two units.
        unsafe { host::assemble(source, &unit.boxes, self.conversion(chunk), output) };
    }

    /// Reads a chunk and decodes it to `into`, in native byte order.
    ///
    /// # Errors
    /// Chunks that cannot be read or decoded.
    pub fn decode(
        &self,
        chunk: &Chunk,
        encoded: &Encoded,
        into: &mut [u8],
        scratch: &mut Scratch,
        at: &Context,
    ) -> Result<Times> {
        let fetched = self.read_and_decode(chunk, encoded, into, scratch, at)?;
        Ok(Times { fetched: Some(fetched), decoded: Some(Instant::now()), by_gpu: false })
    }

    /// Returns when the chunk was read.
    fn read_and_decode(
        &self,
        chunk: &Chunk,
        encoded: &Encoded,
        into: &mut [u8],
        scratch: &mut Scratch,
        at: &Context,
    ) -> Result<Instant> {
        let array = self.array(chunk);
        let bytes = encoded.bytes();
        let chain = self.parts[chunk.part()].direct_chain.as_ref();
        if array.codec.is_raw() {
            check_uncompressed_size(bytes, array.read_chunk_bytes(), at)?;
        }
        if chain.is_some_and(GpuChain::is_copy) {
            encoded.read(into, at)?;
            self.chunk_source.counters.decoded(into.len() as u64, false);
            return Ok(Instant::now());
        }
        let most = self.chunk_source.most_encoded_bytes(array);
        if bytes > most {
            let problem = format!(
                "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                array.read_chunk_bytes()
            );
            return Err(Error::Damaged { at: at.clone(), problem });
        }
        let Scratch { encoded: buffer, unpacker, .. } = scratch;
        memory::grow(buffer, bytes).map_err(no_memory(at))?;
        let encoded_bytes = &mut buffer[..bytes as usize];
        encoded.read(encoded_bytes, at)?;
        let fetched = Instant::now();
        let _range = trace::range(Stage::DecodeOnCpu, into.len() as u64);
        if !chain.is_some_and(|chain| chain.decode_into(encoded_bytes, into, unpacker)) {
            let decoded = codec::decode_on_cpu(array, Cow::Borrowed(encoded_bytes))
                .map_err(|error| Error::Decode { at: at.clone(), source: error.into() })?;
            into.copy_from_slice(&decoded);
        }
        if bytes > encoded_scratch_bytes(array) {
            // The buffer is larger than the budget counts. Further chunks need less.
            *buffer = vec![];
        }
        self.chunk_source.counters.decoded(into.len() as u64, false);
        Ok(fetched)
    }
}

/// Checks the size of a chunk that is not encoded.
///
/// # Errors
/// Any size but `expected`.
pub fn check_uncompressed_size(bytes: u64, expected: u64, at: &Context) -> Result<()> {
    if bytes == expected {
        return Ok(());
    }
    let problem = format!("the uncompressed chunk has {bytes} bytes instead of {expected}");
    Err(Error::Damaged { at: at.clone(), problem })
}

/// For `map_err` after an allocation.
fn no_memory(at: &Context) -> impl FnOnce(Refused) -> Error {
    |refused| Error::Memory { at: at.clone(), bytes: refused.bytes }
}

/// Host memory of a thread for the encoded bytes of a chunk, as budgets count it. Encoders make no longer chunks.
fn encoded_scratch_bytes(array: &ArrayInfo) -> u64 {
    array.codec.encoded_bound.unwrap_or_else(|| codec::lenient_bound(array.read_chunk_bytes()))
}

/// Host memory that a thread needs to read and decode a chunk, as budgets count it. `decoded`: bytes for the elements, if the
/// thread does not decode to the output.
pub fn scratch_bytes(array: &ArrayInfo, decoded: u64) -> u64 {
    let chain = match codec::decode_path(array) {
        DecodePath::Gpu(chain) => Some(chain),
        DecodePath::Cpu(_) => None,
    };
    let (encoded, copies) = match chain {
        Some(chain) if chain.is_copy() => (0, 0),
        Some(chain) if chain.is_direct() => (encoded_scratch_bytes(array), 0),
        // zarrs holds the input and the output of a codec.
        _ => (encoded_scratch_bytes(array), 2),
    };
    let copies = array.read_chunk_bytes().saturating_mul(copies);
    encoded.saturating_add(copies).saturating_add(decoded)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::assemble::OutputMemory;
    use crate::batch::{Batch, Progress};
    use crate::dataset::{Dataset, ElementType};
    use crate::decode::device_pool::DevicePool;
    use crate::decode::part::PartPlan;
    use crate::fetch::{Locator, Posix};
    use crate::options::MissingChunks;
    use crate::plan::{ChunkKey, CopyBox, Dims};
    use crate::store::Access;

    use std::num::NonZeroUsize;

    const CHUNK: usize = 4;

    /// A store with one array of three chunks of four elements.
    pub(crate) struct Store {
        pub(crate) folder: tempfile::TempDir,
        pub(crate) decoder: CpuDecoder,
    }

    /// How a store is made and read.
    #[derive(Clone)]
    pub(crate) struct Setup {
        data_type: &'static str,
        fill_value: &'static str,
        gzip: bool,
        cast: Option<ElementType>,
        missing_chunks: MissingChunks,
    }

    impl Default for Setup {
        fn default() -> Self {
            Self {
                data_type: "uint16",
                fill_value: "7",
                gzip: false,
                cast: None,
                missing_chunks: MissingChunks::Fill,
            }
        }
    }

    impl Setup {
        pub(crate) fn store(self) -> Store {
            let folder = tempfile::tempdir().unwrap();
            let gzip = r#", {"name": "gzip", "configuration": {"level": 1}}"#;
            let metadata = format!(
                r#"{{"zarr_format": 3, "node_type": "array", "shape": [12], "data_type": "{}", "fill_value": {},
                "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [4]}}}},
                "chunk_key_encoding": {{"name": "default"}}, "codecs": [
                    {{"name": "bytes", "configuration": {{"endian": "little"}}}}{}]}}"#,
                self.data_type,
                self.fill_value,
                if self.gzip { gzip } else { "" }
            );
            std::fs::write(folder.path().join("zarr.json"), metadata).unwrap();
            std::fs::create_dir(folder.path().join("c")).unwrap();
            let dataset =
                Dataset::open(&[folder.path().to_str().unwrap().into()], &[], &Access::to_folders(true))
                    .unwrap();
            let array = dataset.part(0, 0);
            let conversion = Conversion::new(array.stored, None, None, None, self.cast).unwrap();
            let plan = PartPlan::new(array, codec::decode_path(array), conversion, false);
            let chunk_source = ChunkSource {
                dataset: Arc::new(dataset),
                locator: Locator::new(Arc::new(Posix), NonZeroUsize::MIN),
                remote: None,
                prefetcher: Arc::default(),
                missing_chunks: self.missing_chunks,
                host_memory_bytes: 1 << 20,
                counters: Arc::default(),
            };
            let decoder = CpuDecoder { chunk_source, parts: Arc::new(PartPlans::new(vec![vec![plan]])) };
            Store { folder, decoder }
        }
    }

    impl Store {
        /// Writes the file of a chunk.
        pub(crate) fn write(&self, chunk: u64, encoded: &[u8]) {
            std::fs::write(self.folder.path().join(format!("c/{chunk}")), encoded).unwrap();
        }

        /// Numbers of chunks that were read, were missing and were decoded.
        pub(crate) fn counted(&self) -> [u64; 3] {
            let counters = &self.decoder.chunk_source.counters;
            [counters.chunks_read.get(), counters.chunks_missing.get(), counters.chunks_decoded_cpu.get()]
        }
    }

    /// A batch with one output of zeros.
    pub(crate) struct Output {
        memory: Vec<u8>,
        pub(crate) batch: Arc<Batch>,
    }

    impl Output {
        pub(crate) fn new(bytes: usize) -> Self {
            let memory = vec![0; bytes];
            let output = OutputMemory { address: memory.as_ptr() as u64, bytes: bytes as u64 };
            let batch = Batch::new(0, vec![], vec![output], None, Progress::new(Arc::default()));
            Self { memory, batch }
        }

        /// A unit for `count` elements of a chunk, from element `from` on, to element `to` of the output.
        pub(crate) fn unit(&self, from: u64, to: u64, count: u64) -> PendingUnit {
            let (extents, strides) = (Dims::from_slice(&[count]), Dims::from_slice(&[1]));
            let one = CopyBox { from, to, extents, from_strides: strides.clone(), to_strides: strides };
            self.batch.unit(0, [one].into_iter().collect())
        }

        /// The output once the batch is complete.
        pub(crate) fn bytes(&self) -> Result<Vec<u8>, Arc<Error>> {
            self.batch.planned();
            assert!(self.batch.is_ready(), "a unit is not finished");
            self.batch.wait(|| None)?;
            // SAFETY: the memory lives, and the finished batch is not written to any more.
            let written = unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.memory.len()) };
            Ok(written.to_vec())
        }
    }

    /// The chunk in the middle of the array.
    pub(crate) fn chunk(allocation: bool, unit: PendingUnit) -> Arc<Chunk> {
        let allocation = allocation.then(|| DevicePool::new(0, 1 << 10).take(8, 0, &mut ()).unwrap());
        Chunk::new(ChunkKey { array: 0, part: 0, number: 1 }, Dims::from_slice(&[1]), allocation, unit)
    }

    fn little_endian(values: &[u16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_whole_chunk_is_decoded_to_its_output() {
        for gzipped in [false, true] {
            let store = Setup { gzip: gzipped, ..Setup::default() }.store();
            let elements = little_endian(&[1, 2, 3, 4]);
            store.write(1, &if gzipped { gzip(&elements) } else { elements.clone() });
            let (output, mut scratch) = (Output::new(12), Scratch::default());
            let chunk = chunk(false, output.unit(0, 2, CHUNK as u64));
            assert!(store.decoder.decode_and_assemble(&chunk, &mut scratch).unwrap());
            assert_eq!(output.bytes().unwrap(), [&[0; 4], &elements[..]].concat(), "gzip: {gzipped}");
            assert_eq!(store.counted(), [1, 0, 1]);
            // The chunk took no other way.
            assert!(scratch.decoded.is_empty());
        }
    }

    #[test]
    fn parts_of_a_chunk_are_assembled_from_scratch_memory() {
        let store = Setup { gzip: true, ..Setup::default() }.store();
        store.write(1, &gzip(&little_endian(&[1, 2, 3, 4])));
        let (output, mut scratch) = (Output::new(8), Scratch::default());
        let chunk = chunk(false, output.unit(1, 0, 2));
        assert!(chunk.add(output.unit(3, 3, 1)).is_none());
        assert!(store.decoder.decode_and_assemble(&chunk, &mut scratch).unwrap());
        assert_eq!(output.bytes().unwrap(), little_endian(&[2, 3, 0, 4]));
        // The memory is kept for the next chunk.
        assert_eq!(scratch.decoded.len(), 8);
    }

    #[test]
    fn a_conversion_rules_direct_output_out() {
        let store = Setup { cast: Some(ElementType::UInt8), ..Setup::default() }.store();
        store.write(1, &little_endian(&[1, 2, 3, 4]));
        let output = Output::new(4);
        let chunk = chunk(false, output.unit(0, 0, CHUNK as u64));
        assert!(store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap());
        assert_eq!(output.bytes().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_missing_chunk_is_the_fill_value() {
        for cached in [false, true] {
            let store = Setup::default().store();
            let output = Output::new(8);
            let chunk = chunk(cached, output.unit(0, 0, CHUNK as u64));
            assert!(!store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap());
            assert_eq!(output.bytes().unwrap(), little_endian(&[7; 4]), "cached: {cached}");
            assert_eq!(store.counted(), [0, 1, 0]);
            assert_eq!(output.batch.absent(), [(0, 0)]);
            assert_eq!(matches!(chunk.cached(), Some(Cached::Missing)), cached);
        }
    }

    #[test]
    fn a_missing_chunk_of_complex_numbers_is_filled_before_it_is_assembled() {
        for cached in [false, true] {
            let setup = Setup { data_type: "complex64", fill_value: "[1.5, -2.0]", ..Setup::default() };
            let store = setup.store();
            let output = Output::new(8);
            // Two elements are one number: these are the last of the chunk.
            let chunk = chunk(cached, output.unit(6, 0, 2));
            assert!(!store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap());
            let expected = [1.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat();
            assert_eq!(output.bytes().unwrap(), expected, "cached: {cached}");
        }
    }

    #[test]
    fn a_cached_chunk_is_kept_for_later_units() {
        let store = Setup { gzip: true, ..Setup::default() }.store();
        store.write(1, &gzip(&little_endian(&[1, 2, 3, 4])));
        let (first, later) = (Output::new(8), Output::new(2));
        let chunk = chunk(true, first.unit(0, 0, CHUNK as u64));
        assert!(store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap());
        assert_eq!(first.bytes().unwrap(), little_endian(&[1, 2, 3, 4]));
        let unit = chunk.add(later.unit(2, 0, 1)).expect("the chunk is decoded");
        store.decoder.assemble_cached(&chunk, &unit);
        drop(unit);
        assert_eq!(later.bytes().unwrap(), little_endian(&[3]));
        assert_eq!(store.counted(), [1, 0, 1]);
    }

    #[test]
    fn a_chunk_on_the_gpu_cannot_be_assembled_by_the_cpu() {
        let (store, output) = (Setup::default().store(), Output::new(8));
        let chunk = chunk(true, output.unit(0, 0, 1));
        store.decoder.assemble_cached(&chunk, &output.unit(0, 0, 1));
        drop(chunk.ready(Cached::Missing));
        assert!(output.bytes().unwrap_err().to_string().contains("not in host memory"));
    }

    #[test]
    fn damaged_chunks_are_errors_that_name_the_chunk_and_leave_its_units_with_it() {
        let good = little_endian(&[1, 2, 3, 4]);
        let cut = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
        let cases = [
            (Setup::default(), cut(&good), "7 bytes instead of 8"),
            (Setup::default(), [&good[..], &[0]].concat(), "9 bytes instead of 8"),
            (Setup { gzip: true, ..Setup::default() }, cut(&gzip(&good)), "c/1"),
            (Setup { gzip: true, ..Setup::default() }, vec![0; 80 << 10], "encoded bytes"),
            (Setup { gzip: true, ..Setup::default() }, gzip(&good[..6]), "c/1"),
        ];
        for (setup, encoded, expected) in cases {
            for cached in [false, true] {
                let (store, output) = (setup.clone().store(), Output::new(8));
                store.write(1, &encoded);
                let chunk = chunk(cached, output.unit(0, 0, CHUNK as u64));
                let error = store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap_err();
                let text = error.to_string();
                assert!(text.contains(expected) && text.contains("c/1"), "{text}");
                assert!(!output.batch.is_ready());
                chunk.fail(error);
                assert!(output.bytes().is_err());
            }
        }
    }

    #[test]
    fn a_missing_chunk_is_an_error_where_it_was_asked_for() {
        let setup = Setup { missing_chunks: MissingChunks::Error, ..Setup::default() };
        let (store, output) = (setup.store(), Output::new(8));
        let chunk = chunk(false, output.unit(0, 0, CHUNK as u64));
        let error = store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap_err();
        assert!(matches!(error, Error::MissingChunk { .. }), "{error}");
    }

    #[test]
    fn a_store_that_went_away_is_not_a_missing_chunk() {
        let (store, output) = (Setup::default().store(), Output::new(8));
        std::fs::remove_file(store.folder.path().join("zarr.json")).unwrap();
        let chunk = chunk(false, output.unit(0, 0, CHUNK as u64));
        let error = store.decoder.decode_and_assemble(&chunk, &mut Scratch::default()).unwrap_err();
        assert!(matches!(error, Error::StoreChanged { .. }), "{error}");
    }
}
