//! What the host tells the GPU to do with a chunk, carried out on the CPU, against zarrs' own decoding.
//!
//! The kernels themselves are tested in `tests/python/test_kernels_*.py` and, on a GPU, by the matrix of stores.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zarr_dali::codec::work::{Checksum, Decoder, Expected, Pass, Work};
use zarr_dali::codec::{DecodePath, GpuChain, Prepared, decode_on_cpu, decode_path, register};
use zarr_dali::dataset::{ArrayInfo, Dataset};
use zarr_dali::store::Access;
use zarrs::array::codec::{
    Adler32Codec, BloscCodec, BloscCompressionLevel, BloscCompressor, BloscShuffleMode, Crc32cCodec,
    Fletcher32Codec, GzipCodec, ShuffleCodec, ZlibCodec, ZstdCodec,
};
use zarrs::array::{ArrayBuilder, ArrayBytes, BytesToBytesCodecTraits, DataType, data_type};
use zarrs::filesystem::FilesystemStore;

type Codec = Arc<dyn BytesToBytesCodecTraits>;

/// A one-dimensional array in one chunk; returns how it is read and its encoded chunk.
fn write(
    folder: &Path,
    data_type: DataType,
    element_bytes: usize,
    bytes: &[u8],
    codecs: Vec<Codec>,
) -> (ArrayInfo, Vec<u8>) {
    register();
    let elements = (bytes.len() / element_bytes) as u64;
    let store = Arc::new(FilesystemStore::new(folder).unwrap());
    let fill = vec![0u8; element_bytes];
    let array =
        ArrayBuilder::new(vec![elements], vec![elements], data_type, zarrs::array::FillValue::new(fill))
            .bytes_to_bytes_codecs(codecs)
            .build(store, "/")
            .unwrap();
    array.store_metadata().unwrap();
    // Also chunks that hold nothing but the fill value.
    let mut options = zarrs::array::CodecOptions::default();
    options.set_store_empty_chunks(true);
    array.store_chunk_opt(&[0], ArrayBytes::new_flen(bytes.to_vec()), &options).unwrap();
    let encoded = std::fs::read(folder.join("c/0")).unwrap();
    let array = Dataset::open(&[folder.to_str().unwrap().to_string()], &[], &Access::to_folders(true))
        .unwrap()
        .arrays
        .remove(0)
        .parts
        .remove(0);
    (array, encoded)
}

fn chain(array: &ArrayInfo) -> GpuChain {
    match decode_path(array) {
        DecodePath::Gpu(chain) => chain,
        DecodePath::Cpu(reason) => panic!("not on the GPU: {reason}"),
    }
}

/// Does what the GPU is told, step by step.
fn carry_out(encoded: &[u8], work: &Work) -> Result<Vec<u8>, String> {
    let mut area = vec![0xA5; work.bytes as usize];
    if work.streams.is_empty() {
        area.copy_from_slice(encoded);
    }
    for stream in &work.streams {
        let from = &encoded[stream.from.start as usize..stream.from.end as usize];
        let to = &mut area[stream.to.start as usize..stream.to.end as usize];
        let decoded = match &stream.decoder {
            Decoder::Stored => from.to_vec(),
            Decoder::Lz4 => lz4_flex::block::decompress(from, to.len()).map_err(|e| e.to_string())?,
            Decoder::Snappy => snap::raw::Decoder::new().decompress_vec(from).map_err(|e| e.to_string())?,
            Decoder::BloscLz => blosclz(from).ok_or("BloscLZ")?,
            Decoder::Inflate => {
                let mut bytes = vec![];
                std::io::Read::read_to_end(&mut flate2::read::DeflateDecoder::new(from), &mut bytes)
                    .map_err(|e| e.to_string())?;
                bytes
            }
            Decoder::Zstd(_) => zstd::bulk::decompress(from, to.len()).map_err(|e| e.to_string())?,
        };
        if decoded.len() != to.len() {
            return Err(format!("a stream has {} bytes instead of {}", decoded.len(), to.len()));
        }
        to.copy_from_slice(&decoded);
    }
    for pass in &work.passes {
        match *pass {
            Pass::Check { checksum, start, end, expected } => {
                let covered = &area[start as usize..end as usize];
                let expected = match expected {
                    Expected::Value(value) => value,
                    Expected::At(at) => u32::from_le_bytes(area[at as usize..][..4].try_into().unwrap()),
                };
                let found = match checksum {
                    Checksum::Crc32 => {
                        let mut crc = flate2::Crc::new();
                        crc.update(covered);
                        crc.sum()
                    }
                    Checksum::Adler32 => simd_adler32::adler32(&covered),
                    Checksum::Crc32c => crc32c::crc32c(covered),
                    Checksum::Fletcher32 => fletcher32(covered),
                    Checksum::Xxh64 => expected,
                };
                if found != expected {
                    return Err(format!("{checksum:?} does not match"));
                }
            }
            Pass::Unshuffle { bits, start, end, element_bytes, block_bytes } => {
                let shuffled = &area[start as usize..end as usize];
                let mut next = vec![0x5A; work.bytes as usize];
                let blocks = shuffled.chunks(block_bytes as usize).flat_map(|block| {
                    if bits {
                        bit_unshuffle(block, element_bytes as usize)
                    } else {
                        unshuffle(block, element_bytes as usize)
                    }
                });
                next.iter_mut().zip(blocks).for_each(|(to, byte)| *to = byte);
                area = next;
            }
            Pass::UndoDelta { .. } => panic!("no chain here has it"),
        }
    }
    let mut elements = area[work.elements.start as usize..work.elements.end as usize].to_vec();
    if work.swaps_bytes {
        elements.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
    Ok(elements)
}

fn unshuffle(block: &[u8], size: usize) -> Vec<u8> {
    let count = block.len() / size;
    let mut bytes: Vec<u8> = (0..count * size).map(|i| block[i % size * count + i / size]).collect();
    bytes.extend(&block[count * size..]);
    bytes
}

fn bit_unshuffle(block: &[u8], size: usize) -> Vec<u8> {
    let count = block.len() / size;
    if !count.is_multiple_of(8) {
        return block.to_vec();
    }
    let mut bytes = vec![0u8; count * size];
    for (element, byte, bit) in
        (0..count).flat_map(|e| (0..size).flat_map(move |b| (0..8).map(move |bit| (e, b, bit))))
    {
        let row = (byte * 8 + bit) * (count / 8);
        bytes[element * size + byte] |= (block[row + element / 8] >> (element % 8) & 1) << bit;
    }
    bytes.extend(&block[count * size..]);
    bytes
}

/// numcodecs' variant, which takes words with the high byte first.
fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (0u32, 0u32);
    for pair in bytes.chunks(2) {
        low = (low + (u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&byte| byte.into()))) % 65535;
        high = (high + low) % 65535;
    }
    high << 16 | low
}

/// The format as blosclz.c of c-blosc reads it.
fn blosclz(input: &[u8]) -> Option<Vec<u8>> {
    let mut output: Vec<u8> = vec![];
    let mut rest = input.iter().copied();
    let mut control = usize::from(rest.next()?) & 31;
    loop {
        if control < 32 {
            for _ in 0..=control {
                output.push(rest.next()?);
            }
        } else {
            let (mut length, high) = ((control >> 5) - 1, (control & 31) << 8);
            if length == 6 {
                loop {
                    let more = usize::from(rest.next()?);
                    length += more;
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = usize::from(rest.next()?);
            let mut distance = high + low;
            if low == 255 && high == 31 << 8 {
                distance = (usize::from(rest.next()?) << 8) + usize::from(rest.next()?) + 8191;
            }
            for _ in 0..length + 3 {
                output.push(*output.get(output.len().checked_sub(distance + 1)?)?);
            }
        }
        match rest.next() {
            Some(next) => control = next.into(),
            None => return Some(output),
        }
    }
}

fn blosc(
    compressor: BloscCompressor,
    shuffle: BloscShuffleMode,
    size: usize,
    level: u8,
    block: usize,
) -> Codec {
    let level = BloscCompressionLevel::try_from(level).unwrap();
    let block = (block > 0).then_some(block);
    Arc::new(BloscCodec::new(compressor, level, block, shuffle, Some(size)).unwrap())
}

fn chains() -> impl Strategy<Value = Vec<Codec>> {
    use BloscCompressor as C;
    let compressor = prop::sample::select(vec![C::BloscLZ, C::LZ4, C::LZ4HC, C::Snappy, C::Zlib, C::Zstd]);
    let shuffle = prop::sample::select(vec![
        BloscShuffleMode::NoShuffle,
        BloscShuffleMode::Shuffle,
        BloscShuffleMode::BitShuffle,
    ]);
    let size = prop::sample::select(vec![1usize, 2, 3, 4, 7, 8, 16, 24]);
    let block = prop::sample::select(vec![0usize, 256, 1000, 4096]);
    let blosc_chain = (compressor, shuffle, size, prop::sample::select(vec![0u8, 1, 5, 9]), block)
        .prop_map(|(c, s, size, level, block)| Some(blosc(c, s, size, level, block)));
    let compression = prop_oneof![
        5 => blosc_chain,
        1 => Just(Some(Arc::new(ZstdCodec::new(3, false)) as Codec)),
        1 => Just(Some(Arc::new(GzipCodec::new(5).unwrap()) as Codec)),
        1 => Just(Some(Arc::new(ZlibCodec::new(5u32.try_into().unwrap())) as Codec)),
        1 => Just(None),
    ];
    // Not over an odd number of bytes, which compressed ones may be: what zarrs writes then is not numcodecs' checksum.
    let fletcher32 = || vec![Some(Arc::new(Fletcher32Codec::new()) as Codec)];
    let checksum = |more: Vec<Option<Codec>>| {
        let always = vec![
            None,
            Some(Arc::new(Crc32cCodec::new()) as Codec),
            Some(Arc::new(Adler32Codec::default()) as Codec),
        ];
        prop::sample::select([always, more].concat())
    };
    let shuffle = prop::sample::select(vec![None, Some(Arc::new(ShuffleCodec::new(4)) as Codec)]);
    (shuffle, checksum(fletcher32()), compression, checksum(vec![])).prop_map(
        |(shuffle, inner, compression, outer)| {
            [shuffle, inner, compression, outer].into_iter().flatten().collect()
        },
    )
}

/// Bytes of float32 that compress somewhat.
fn values() -> impl Strategy<Value = Vec<u8>> {
    (1usize..3000, 0u32..3, any::<u32>()).prop_map(|(count, kind, seed)| {
        (0..count as u32)
            .flat_map(|i| {
                let noise =
                    i.wrapping_mul(0x9E37_79B9).wrapping_add(seed).rotate_left(7).wrapping_mul(0x85EB_CA6B);
                match kind {
                    0 => noise,
                    1 => (i as f32 / 50.0).sin().to_bits() & 0xFFFF_F000,
                    _ => i / 40 + noise % 3,
                }
                .to_ne_bytes()
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn the_gpu_is_told_to_do_what_zarrs_does(bytes in values(), codecs in chains()) {
        let folder = tempfile::tempdir().unwrap();
        let (array, encoded) = write(folder.path(), data_type::float32(), 4, &bytes, codecs);
        let chain = chain(&array);
        prop_assert!(encoded.len() as u64 <= chain.encoded_bound());
        match chain.prepare(&encoded).unwrap() {
            Prepared::Cpu(reason) => prop_assert!(reason.contains("small") || reason.contains("whole elements"), "{}", reason),
            Prepared::Gpu(part, work) => {
                let most = chain.most();
                prop_assert!(work.streams.len() as u64 <= most.streams && work.areas() <= most.areas);
                prop_assert_eq!(carry_out(&encoded[part], &work), Ok(bytes.clone()));
            }
        }
        prop_assert_eq!(decode_on_cpu(&array, encoded.into()).unwrap().into_owned(), bytes);
    }

    #[test]
    fn no_damage_makes_the_host_panic_or_reach_outside(
        bytes in values(), codecs in chains(), cut in any::<prop::sample::Index>(), truncate: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (array, mut encoded) = write(folder.path(), data_type::float32(), 4, &bytes, codecs);
        let chain = chain(&array);
        for (place, value, near) in changes {
            // Headers and tables are at the start.
            let place = if near { place.index(encoded.len().min(48)) } else { place.index(encoded.len()) };
            encoded[place] = value;
        }
        if truncate {
            encoded.truncate(cut.index(encoded.len()));
        }
        if let Ok(Prepared::Gpu(part, work)) = chain.prepare(&encoded) {
            let most = chain.most();
            prop_assert!(work.streams.len() as u64 <= most.streams && work.areas() <= most.areas);
            prop_assert!(work.elements.end <= work.bytes && work.elements.end - work.elements.start == bytes.len() as u64);
            for stream in &work.streams {
                prop_assert!(stream.from.start <= stream.from.end && stream.from.end <= part.len() as u64);
                prop_assert!(stream.to.start <= stream.to.end && stream.to.end <= work.bytes);
            }
        }
        let _ = decode_on_cpu(&array, encoded.into());
    }
}
