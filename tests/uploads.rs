//! The way of chunks to the GPU, with a stub of the driver that copies as late as it may: each byte arrives, however little pinned memory there is,
//! and the work of the GPU is that of the whole chunk. Without gcc there is no test.

#[path = "common/driver.rs"]
mod driver;

use std::ffi::CStr;
use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zarr_dali::assemble::{Conversion, OutputMemory};
use zarr_dali::batch::{Batch, Progress};
use zarr_dali::codec::{self, DecodePath, Prepared, Work};
use zarr_dali::dataset::Dataset;
use zarr_dali::decode::Queue;
use zarr_dali::decode::chunk::Chunk;
use zarr_dali::decode::chunk_source::ChunkSource;
use zarr_dali::decode::cpu::{CpuDecoder, Scratch};
use zarr_dali::decode::device_pool::DevicePool;
use zarr_dali::decode::flush::Flush;
use zarr_dali::decode::gpu_task::{GpuTask, Payload};
use zarr_dali::decode::part::{PartPlan, PartPlans};
use zarr_dali::decode::upload::{ChunkUpload, UploadContext, Uploader, UploaderParts};
use zarr_dali::fetch::{Locator, Posix};
use zarr_dali::gpu::{DeviceMemory, EventPool, Gpu, Kernels, PinnedPool};
use zarr_dali::options::MissingChunks;
use zarr_dali::plan::{Boxes, ChunkKey, Dims};
use zarr_dali::store::Access;

/// Elements of a chunk, float32: those of small ones, which are packed, of one piece, and of several, also where they are encoded.
const SIZES: [usize; 3] = [10_000, 400_000, 2_300_000];
/// Small chunks are packed in buffers of this size.
const PACKED_BYTES: u64 = 256 << 10;
const CHUNKS: u64 = 4;
const ROUNDS: u64 = 2;

/// A codec of Zarr format 3, and a chunk that it has encoded.
struct Encoder {
    metadata: &'static str,
    encode: fn(&[u8]) -> Vec<u8>,
}

const ENCODERS: [Encoder; 5] = [
    Encoder { metadata: "", encode: <[u8]>::to_vec },
    Encoder {
        metadata: r#", {"name": "zstd", "configuration": {"level": 1, "checksum": false}}"#,
        encode: |bytes| zstd::bulk::compress(bytes, 1).expect("zstd"),
    },
    Encoder { metadata: BLOSC_LZ4, encode: |bytes| blosc(bytes, c"lz4", 1, 0) },
    Encoder { metadata: BLOSC_ZSTD, encode: |bytes| blosc(bytes, c"zstd", 0, 2048) },
    // Both blocks are the second one's bytes, so that headers which have passed are asked for.
    Encoder {
        metadata: BLOSC_ZSTD,
        encode: |bytes| {
            let mut container = blosc(bytes, c"zstd", 0, bytes.len() / 2);
            container.copy_within(20..24, 16);
            container
        },
    },
];

const BLOSC_LZ4: &str = r#", {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}}"#;
const BLOSC_ZSTD: &str = r#", {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 5, "shuffle": "noshuffle", "typesize": 4, "blocksize": 0}}"#;

fn blosc(bytes: &[u8], codec: &CStr, shuffle: i32, block_bytes: usize) -> Vec<u8> {
    let mut encoded = vec![0; bytes.len() + 16];
    // SAFETY: both pointers are those of slices with these lengths; the name ends with a zero byte.
    let length = unsafe {
        blosc_src::blosc_compress_ctx(
            1,
            shuffle,
            4,
            bytes.len(),
            bytes.as_ptr().cast(),
            encoded.as_mut_ptr().cast(),
            encoded.len(),
            codec.as_ptr(),
            block_bytes,
            1,
        )
    };
    encoded.truncate(usize::try_from(length).expect("blosc"));
    encoded
}

/// Float32 of which 20 bits are random, the same for each number, and the same in both halves.
fn values(number: u64, elements: usize) -> Vec<u8> {
    let mut state = number + 1;
    let mut value = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 44) as f32
    };
    let half: Vec<u8> = (0..elements / 2).flat_map(|_| value().to_le_bytes()).collect();
    half.repeat(2)
}

/// A store of [`CHUNKS`] chunks.
struct Store {
    folder: tempfile::TempDir,
    decoder: CpuDecoder,
    /// What the GPU gets of each chunk if it decodes it, and what of those that a thread has decoded.
    encoded: Vec<(Vec<u8>, Work)>,
    decoded: Vec<(Vec<u8>, Work)>,
}

impl Store {
    fn new(encoder: &Encoder, elements: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let metadata = format!(
            r#"{{"zarr_format": 3, "node_type": "array", "shape": [{CHUNKS}, {elements}], "data_type": "float32", "fill_value": 0,
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [1, {elements}]}}}},
            "chunk_key_encoding": {{"name": "default"}},
            "codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}{}]}}"#,
            encoder.metadata
        );
        fs::write(folder.path().join("zarr.json"), metadata).expect("metadata");
        let path = folder.path().to_str().expect("a path").to_owned();
        let dataset = Dataset::open(&[path], &[], &Access::to_folders(true)).expect("a store");
        let array = dataset.part(0, 0);
        let DecodePath::Gpu(chain) = codec::decode_path(array) else { panic!("not for a GPU") };
        let (mut encoded, mut decoded) = (vec![], vec![]);
        for number in 0..CHUNKS {
            let values = values(number, elements);
            let chunk = (encoder.encode)(&values);
            let is_large = elements == SIZES[2];
            assert!(!is_large || chunk.len() > 2 * Uploader::PIECE_BYTES, "{}", chunk.len());
            let file = folder.path().join(format!("c/{number}/0"));
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, &chunk).expect("a chunk");
            let Ok(Prepared::Gpu(part, work)) = chain.prepare(&chunk) else { panic!("not for a GPU") };
            assert_eq!(part, 0..chunk.len());
            encoded.push((chunk, work));
            let work = Work::none(values.len() as u64);
            decoded.push((values, work));
        }
        let conversion = Conversion::new(array.stored, None, None, None, None).expect("a conversion");
        let plan = PartPlan::new(array, DecodePath::Gpu(chain), conversion, true);
        let chunk_source = ChunkSource {
            dataset: Arc::new(dataset),
            locator: Locator::new(Arc::new(Posix), NonZeroUsize::MIN),
            remote: None,
            prefetcher: Arc::default(),
            missing_chunks: MissingChunks::Fill,
            host_memory_bytes: 1 << 30,
            counters: Arc::default(),
        };
        let parts = Arc::new(PartPlans::new(vec![vec![plan]]));
        Self { folder, decoder: CpuDecoder { chunk_source, parts }, encoded, decoded }
    }

    fn largest(&self) -> u64 {
        self.encoded.iter().chain(&self.decoded).map(|(bytes, _)| bytes.len()).max().expect("chunks") as u64
    }
}

fn chunk(number: u64) -> Arc<Chunk> {
    let output = OutputMemory { address: 0, bytes: 0 };
    let batch = Batch::new(number, vec![], vec![output], None, Progress::new(Arc::default()));
    let key = ChunkKey { array: 0, part: 0, number: number.into() };
    Chunk::new(key, Dims::from_slice(&[number, 0]), None, batch.unit(0, Boxes::new()))
}

/// Ends the wait for tasks when a thread that uploads has failed.
struct CloseOnPanic<'a>(&'a Queue<GpuTask>);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}

/// Compares a chunk on the GPU with the chunk: what is wrong, if something is.
fn problem(task: &GpuTask, store: &Store) -> Option<String> {
    let number = task.chunk.key.number as usize;
    let Payload::OnDevice(on_device) = &task.payload else { return Some("it is not on the GPU".into()) };
    on_device.arrived.as_ref().expect("submitted").synchronize().expect("its copies");
    let (bytes, work) = if task.by_gpu { &store.encoded[number] } else { &store.decoded[number] };
    // SAFETY: the device memory of the stub is memory of the host, and the task holds its allocation.
    let arrived = unsafe { std::slice::from_raw_parts(on_device.address as *const u8, bytes.len()) };
    if arrived != bytes {
        return Some(format!("chunk {number} has other bytes on the GPU"));
    }
    (on_device.work != *work).then(|| format!("chunk {number} is planned otherwise"))
}

/// Uploads each chunk several times by two threads, of which one decodes it, with that much pinned memory. Chunk 1 is cut short in the last round.
fn upload(gpu: &Arc<Gpu>, kernels: &Arc<Kernels>, store: &Store, pinned_bytes: u64) {
    let queue: Arc<Queue<GpuTask>> = Arc::default();
    let memory =
        DeviceMemory::new(gpu, 3 * (store.largest() + 4096) + 4 * PACKED_BYTES).expect("device memory");
    let upload_pool = DevicePool::new(memory.address(), memory.bytes());
    let parts = UploaderParts {
        gpu: gpu.clone(),
        kernels: kernels.clone(),
        events: EventPool::new(gpu),
        pinned: PinnedPool::new(gpu, pinned_bytes, store.largest()),
        received: None,
        queue: queue.clone(),
        upload_pool: upload_pool.clone(),
        packed_bytes: PACKED_BYTES,
    };
    let context = UploadContext { upload_pool, most_boxes: usize::MAX };
    let damaged = store.folder.path().join("c/1/0");
    let upload_round = |round: u64| {
        // What is wrong is said when nobody waits for the memory of the chunks any more.
        let problems: Vec<String> = std::thread::scope(|scope| {
            for thread in 0..2 {
                let (parts, context, queue) = (parts.clone(), &context, &queue);
                scope.spawn(move || {
                    let _guard = CloseOnPanic(queue);
                    let mut uploader = Uploader::new(parts, &mut None, Arc::default()).expect("a stream");
                    let mut scratch = Scratch::default();
                    for number in (0..CHUNKS).map(|number| (number + thread * round) % CHUNKS) {
                        let chunk = chunk(number);
                        let upload = ChunkUpload::new(&store.decoder, context, &chunk);
                        let uploaded = upload.upload(&mut uploader, &mut scratch, thread == 1);
                        assert_eq!(uploaded.is_err(), round == ROUNDS && number == 1, "{uploaded:?}");
                        if uploaded.is_err() {
                            uploader.abort();
                        }
                    }
                    uploader.flush();
                });
            }
            let expected = 2 * (CHUNKS - u64::from(round == ROUNDS));
            let tasks = (0..expected).map_while(|_| queue.pop_group(|_| false)).flatten();
            tasks.filter_map(|task| problem(&task, store)).collect()
        });
        assert!(problems.is_empty(), "with {pinned_bytes} bytes: {problems:?}");
    };
    (0..ROUNDS).for_each(upload_round);
    let whole = fs::read(&damaged).expect("a chunk");
    fs::write(&damaged, &whole[..whole.len() - 100]).expect("a chunk");
    upload_round(ROUNDS);
    fs::write(&damaged, whole).expect("a chunk");
}

#[test]
#[ignore = "run by the other, with a stub of the driver"]
fn uploads() {
    let gpu = Gpu::open(0).expect("the stub");
    let kernels = Arc::new(Kernels::load(&gpu).expect("kernels"));
    codec::register();
    for (encoder, elements) in ENCODERS.iter().flat_map(|encoder| SIZES.map(|elements| (encoder, elements))) {
        let store = Store::new(encoder, elements);
        // Room for all; for one chunk and one piece; for one chunk alone.
        let least = store.largest().max(2 * PACKED_BYTES);
        for room in [64 << 20, least + Uploader::PIECE_BYTES as u64 + 4096, least] {
            upload(&gpu, &kernels, &store, room);
        }
    }
    println!("worked");
}

#[test]
fn what_is_on_the_gpu_is_the_chunk() {
    let Some(stub) = driver::stub(13_000, 90) else { return };
    let printed = driver::run(&stub, "uploads", |_| {});
    assert!(printed.contains("worked"), "{printed}");
}
