//! The whole decode path on the CPU backend against zarrs' own reading, without DALI.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zarr_dali::codec::decode_on_cpu;
use zarr_dali::dataset::{ByteFormat, Dataset, ElementType, StoredType};
use zarr_dali::error::ErrorKind;
use zarr_dali::options::Arguments;
use zarr_dali::reader::Reader;
use zarr_dali::store::Access;
use zarrs::array::codec::{GzipCodec, ShardingCodecBuilder, TransposeCodec, ZstdCodec};
use zarrs::array::{
    ArrayBuilder, ArrayBytes, ArraySubset, BytesToBytesCodecTraits, DataType, FillValue, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::metadata_ext::codec::transpose::TransposeOrder;

#[derive(Clone, Copy, Debug)]
enum Chain {
    Raw,
    Zstd,
    Gzip,
    Sharded,
    /// Transposed twice, each time by as many places.
    Turned(usize),
    /// The same inside shards.
    ShardedTurned(usize),
}

const CHAINS: [Chain; 8] = [
    Chain::Raw,
    Chain::Zstd,
    Chain::Gzip,
    Chain::Sharded,
    Chain::Turned(1),
    Chain::Turned(2),
    Chain::ShardedTurned(1),
    Chain::ShardedTurned(2),
];

/// A transposition that moves every dimension by `places` and then swaps the first two.
fn turn(rank: usize, places: usize) -> Arc<TransposeCodec> {
    let mut order: Vec<usize> = (0..rank).collect();
    order.rotate_left(places % rank);
    if rank > 1 {
        order.swap(0, 1);
    }
    Arc::new(TransposeCodec::new(TransposeOrder::new(&order).unwrap()))
}

/// Writes a float32 array whose elements are their own flat number, except for chunks that are left out.
fn write(folder: &Path, shape: &[u64], chunk: &[u64], chain: Chain, omit_every: u64) {
    write_from(0, folder, shape, chunk, chain, omit_every);
}

/// The same with numbers from `base` on.
fn write_from(base: u64, folder: &Path, shape: &[u64], chunk: &[u64], chain: Chain, omit_every: u64) {
    let store = Arc::new(FilesystemStore::new(folder).unwrap());
    let zstd: Arc<dyn BytesToBytesCodecTraits> = Arc::new(ZstdCodec::new(1, false));
    let mut grid = chunk.to_vec();
    if matches!(chain, Chain::Sharded | Chain::ShardedTurned(_)) {
        grid.iter_mut().for_each(|n| *n *= 2);
    }
    let mut builder = ArrayBuilder::new(shape.to_vec(), grid.clone(), data_type::float32(), f32::NAN);
    match chain {
        Chain::Raw => builder.bytes_to_bytes_codecs(vec![]),
        Chain::Zstd => builder.bytes_to_bytes_codecs(vec![zstd]),
        Chain::Gzip => builder.bytes_to_bytes_codecs(vec![Arc::new(GzipCodec::new(1).unwrap())]),
        Chain::Turned(places) => {
            let turn = turn(shape.len(), places);
            builder.array_to_array_codecs(vec![turn.clone(), turn]).bytes_to_bytes_codecs(vec![zstd])
        }
        Chain::Sharded | Chain::ShardedTurned(_) => {
            let inner = chunk.iter().map(|&n| NonZeroU64::new(n).unwrap()).collect();
            let mut sharding = ShardingCodecBuilder::new(inner, &data_type::float32());
            sharding.bytes_to_bytes_codecs(vec![zstd]);
            if let Chain::ShardedTurned(places) = chain {
                let turn = turn(shape.len(), places);
                sharding.array_to_array_codecs(vec![turn.clone(), turn]);
            }
            builder.array_to_bytes_codec(sharding.build_arc()).bytes_to_bytes_codecs(vec![])
        }
    };
    let array = builder.build(store, "/").unwrap();
    array.store_metadata().unwrap();
    let len: u64 = shape.iter().product();
    let bytes: Vec<u8> = (base..base + len).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    array.store_array_subset(&array.subset_all(), ArrayBytes::new_flen(bytes)).unwrap();
    for (number, cell) in cells(&grid, shape).into_iter().enumerate() {
        if omit_every > 0 && (number as u64).is_multiple_of(omit_every) {
            array.erase_chunk(&cell).unwrap();
        }
    }
}

fn cells(chunk: &[u64], shape: &[u64]) -> Vec<Vec<u64>> {
    let counts: Vec<u64> = shape.iter().zip(chunk).map(|(n, c)| n.div_ceil(*c)).collect();
    (0..counts.iter().product())
        .map(|mut rest: u64| {
            let mut cell = vec![0; counts.len()];
            for d in (0..counts.len()).rev() {
                cell[d] = rest % counts[d];
                rest /= counts[d];
            }
            cell
        })
        .collect()
}

fn arguments(folder: &Path, batch_size: i64) -> Arguments {
    Arguments { batch_size, num_io_threads: 2, ..Arguments::new(folder.to_str().unwrap()) }
}

/// Submits and takes `batches` batches; each as the bits of its elements, poisoned before.
fn read(reader: &mut Reader, batch_size: u64, batches: u64) -> Vec<Vec<u32>> {
    let elements = reader.outputs()[0].shape.iter().product::<u64>() * batch_size;
    let depth = reader.depth();
    let mut lent: std::collections::VecDeque<Vec<u32>> = Default::default();
    let mut result = vec![];
    for number in 0..batches + depth {
        if number < batches {
            let mut memory = vec![0xDEAD_BEEF_u32; elements as usize];
            // SAFETY: the vector's memory stays where it is in the queue until its batch was handed over.
            unsafe { reader.submit(&[memory.as_mut_ptr() as usize]).unwrap() };
            lent.push_back(memory);
        }
        if number >= depth && !lent.is_empty() {
            reader.next_batch().unwrap();
            result.extend(lent.pop_front());
        }
    }
    result
}

/// What zarrs reads for the samples of the batch that was handed over last, from the arrays in the folders, which
/// are joined.
fn expected(reader: &Reader, folders: &[&Path], output: usize, samples: usize) -> Vec<u32> {
    let (mut rows, mut whole) = (vec![], vec![]);
    for folder in folders {
        let store = Arc::new(FilesystemStore::new(folder).unwrap());
        let array = zarrs::array::Array::open(store, "/").unwrap();
        let bytes: ArrayBytes = array.retrieve_array_subset(&array.subset_all()).unwrap();
        let bytes = bytes.into_fixed().unwrap();
        whole.extend(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_ne_bytes(*b)));
        rows.push(array.shape().to_vec());
    }
    let mut shape = rows[0].clone();
    shape[0] = rows.iter().map(|shape| shape[0]).sum();
    let mut all = vec![];
    for i in 0..samples {
        let info = reader.source_info(output, i).unwrap();
        let ranges = info.rsplit_once('[').unwrap().1.trim_end_matches(']');
        let ranges: Vec<_> = ranges
            .split(", ")
            .map(|range| match range.split_once(':') {
                Some((start, end)) => start.parse().unwrap()..end.parse().unwrap(),
                None => range.parse().unwrap()..range.parse::<u64>().unwrap() + 1,
            })
            .collect();
        let subset = ArraySubset::new_with_ranges(&ranges);
        all.extend(subset.linearised_indices(&shape).unwrap().iter().map(|i| whole[i as usize]));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn batches_hold_what_zarrs_reads(
        dims in prop::collection::vec((1u64..8, 1u64..4), 1..4),
        chain in prop::sample::select(CHAINS.to_vec()),
        omit_every in 0u64..4, batch_size in 1i64..5, window in 0i64..4, shuffle: bool, depth in 1i64..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let shape: Vec<u64> = dims.iter().map(|d| d.0).collect();
        let chunk: Vec<u64> = dims.iter().map(|d| d.1).collect();
        write(folder.path(), &shape, &chunk, chain, omit_every);
        let mut arguments = arguments(folder.path(), batch_size);
        arguments.window = (window > 0).then(|| vec![window.min(shape[0] as i64)]);
        arguments.random_shuffle = shuffle;
        arguments.prefetch_queue_depth = depth;
        let mut reader = Reader::open(&arguments).unwrap();
        let mut again = Reader::open(&arguments).unwrap();
        let whole = read(&mut reader, batch_size as u64, 4);
        for (number, batch) in whole.iter().enumerate() {
            // A reader that stops after this batch names its samples.
            let mut upto = Reader::open(&arguments).unwrap();
            read(&mut upto, batch_size as u64, number as u64 + 1);
            prop_assert_eq!(batch, &expected(&upto, &[folder.path()], 0, batch_size as usize), "batch {}", number);
        }
        prop_assert_eq!(read(&mut again, batch_size as u64, 4), whole);
    }

    #[test]
    fn joined_stores_are_what_zarrs_reads_of_each(
        rest in prop::collection::vec(1u64..6, 0..3),
        parts in prop::collection::vec(
            (1u64..6, prop::array::uniform3(1u64..5), prop::sample::select(CHAINS.to_vec()), 0u64..4), 1..5,
        ),
        batch_size in 1i64..5, window in 0i64..9, shuffle: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut arguments = Arguments { paths: vec![], ..arguments(folder.path(), batch_size) };
        let mut folders = vec![];
        for (number, (length, chunk, chain, omit_every)) in parts.iter().enumerate() {
            let part = folder.path().join(format!("part-{number}"));
            let shape = [&[*length], &rest[..]].concat();
            write_from(number as u64 * 10_000, &part, &shape, &chunk[..shape.len()], *chain, *omit_every);
            arguments.paths.push(part.to_str().unwrap().into());
            folders.push(part);
        }
        let folders: Vec<&Path> = folders.iter().map(|folder| folder.as_path()).collect();
        let length: u64 = parts.iter().map(|part| part.0).sum();
        arguments.window = (window > 0).then(|| vec![window.min(length as i64)]);
        arguments.random_shuffle = shuffle;
        let mut reader = Reader::open(&arguments).unwrap();
        for (number, batch) in read(&mut reader, batch_size as u64, 3).iter().enumerate() {
            let mut upto = Reader::open(&arguments).unwrap();
            read(&mut upto, batch_size as u64, number as u64 + 1);
            prop_assert_eq!(batch, &expected(&upto, &folders, 0, batch_size as usize), "batch {}", number);
        }
    }
}

/// Writes an array as metadata and chunks in full, for what zarrs does not write.
fn write_by_hand(folder: &Path, metadata: &serde_json::Value, chunks: &[(&str, &[u8])]) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    for (key, bytes) in chunks {
        std::fs::write(folder.join(key), bytes).unwrap();
    }
}

#[test]
fn scaled_chunks_are_decoded_as_they_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let scale = serde_json::json!({
        "id": "fixedscaleoffset", "scale": 10, "offset": 273.15, "dtype": "<f4", "astype": ">i2",
    });
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [2, 3], "chunks": [2, 3], "dtype": "<f4", "fill_value": "NaN", "order": "F",
        "filters": [scale], "compressor": null,
    });
    write_by_hand(folder.path(), &metadata, &[("0.0", &[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 1, 0])]);
    let dataset =
        Dataset::open(&[folder.path().to_str().unwrap().into()], &[], &Access::to_folders(true)).unwrap();
    let array = dataset.part(0, 0);
    assert_eq!(
        (array.element, array.stored),
        (ElementType::Float32, StoredType::Element(ElementType::Int16))
    );
    let filter = array.fixed_scale_offset.unwrap();
    assert_eq!((filter.offset, filter.scale), (273.15, 10.0));
    assert!(f32::from_ne_bytes(array.fill_value[..].try_into().unwrap()).is_nan());
    assert_eq!(array.chunk_strides, [1, 2]);
    let encoded = std::fs::read(folder.path().join("0.0")).unwrap();
    let decoded = decode_on_cpu(array, encoded.into()).unwrap();
    let stored: Vec<i16> = decoded.as_chunks::<2>().0.iter().map(|b| i16::from_ne_bytes(*b)).collect();
    assert_eq!(stored, [1, 2, 3, 4, 5, 256]);
}

#[test]
fn every_numeric_type_opens() {
    let types = data_types();
    for (data_type, expected) in types {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
        let fill = FillValue::new(vec![0; data_type.fixed_size().unwrap()]);
        let array =
            ArrayBuilder::new(vec![4, 3], vec![2, 3], data_type.clone(), fill).build(store, "/").unwrap();
        array.store_metadata().unwrap();
        let dataset =
            Dataset::open(&[folder.path().to_str().unwrap().into()], &[], &Access::to_folders(true)).unwrap();
        let array = dataset.part(0, 0);
        let found = (array.stored, array.components);
        assert_eq!(found, expected, "{data_type:?}");
        let components = if expected.1 > 1 { vec![expected.1] } else { vec![] };
        assert_eq!(array.shape, [&[4, 3], &components[..]].concat());
        assert_eq!(array.read_chunk_bytes() as usize, 6 * data_type.fixed_size().unwrap());
    }
}

/// zarrs' numeric types, and how their elements are stored.
fn data_types() -> Vec<(DataType, (StoredType, u64))> {
    use ByteFormat::*;
    use zarrs::array::data_type::*;
    let element = |element| StoredType::Element(element);
    let bytes = [
        (int2(), Int2),
        (int4(), Int4),
        (uint2(), UInt2),
        (uint4(), UInt4),
        (float4_e2m1fn(), Float4E2M1Fn),
        (float6_e2m3fn(), Float6E2M3Fn),
        (float6_e3m2fn(), Float6E3M2Fn),
        (float8_e3m4(), Float8E3M4),
        (float8_e4m3(), Float8E4M3),
        (float8_e4m3b11fnuz(), Float8E4M3B11Fnuz),
        (float8_e4m3fnuz(), Float8E4M3Fnuz),
        (float8_e5m2(), Float8E5M2),
        (float8_e5m2fnuz(), Float8E5M2Fnuz),
        (float8_e8m0fnu(), Float8E8M0Fnu),
    ];
    let others = [
        (bool(), (element(ElementType::Bool), 1)),
        (uint64(), (element(ElementType::UInt64), 1)),
        (float16(), (element(ElementType::Float16), 1)),
        (bfloat16(), (StoredType::BFloat16, 1)),
        (complex64(), (element(ElementType::Float32), 2)),
        (complex128(), (element(ElementType::Float64), 2)),
        (complex_float16(), (element(ElementType::Float16), 2)),
        (complex_bfloat16(), (StoredType::BFloat16, 2)),
        (complex_float8_e5m2(), (StoredType::Byte(Float8E5M2), 2)),
    ];
    let bytes = bytes.into_iter().map(|(data_type, format)| (data_type, (StoredType::Byte(format), 1)));
    bytes.chain(others).collect()
}

#[test]
fn a_reader_continues_where_another_stopped() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[23, 5], &[4, 3], Chain::Zstd, 0);
    for (shuffle, pad, stick) in
        [(false, false, false), (true, true, true), (true, false, true), (true, true, false)]
    {
        let mut arguments = arguments(folder.path(), 4);
        (arguments.random_shuffle, arguments.pad_last_batch, arguments.stick_to_shard) =
            (shuffle, pad, stick);
        (arguments.num_shards, arguments.shard_id) = (3, 1);
        let whole = read(&mut Reader::open(&arguments).unwrap(), 4, 12);
        for position in 0..10 {
            let mut first = Reader::open(&arguments).unwrap();
            read(&mut first, 4, position);
            let mut second = Reader::open(&Arguments { seed: 99, ..arguments.clone() }).unwrap();
            second.restore_state(&first.save_state()).unwrap();
            assert_eq!(read(&mut second, 4, 2), whole[position as usize..][..2], "from {position}");
        }
    }
}

#[test]
fn a_checkpoint_of_another_reader_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[8, 5], &[4, 3], Chain::Raw, 0);
    let base = arguments(folder.path(), 4);
    let state = Reader::open(&base).unwrap().save_state();
    let mut other = Reader::open(&Arguments { window: Some(vec![2]), ..base.clone() }).unwrap();
    let error = other.restore_state(&state).unwrap_err();
    assert!(error.to_string().contains("window=[1], this reader has [2]"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Runtime);
    let mut same = Reader::open(&base).unwrap();
    assert!(same.restore_state(b"\xff\x00").is_err());
    read(&mut same, 4, 1);
    assert!(same.restore_state(&state).unwrap_err().to_string().contains("started"));
}

#[test]
fn a_damaged_chunk_fails_its_batch_and_every_later_call() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[6, 4], &[1, 4], Chain::Zstd, 0);
    std::fs::write(folder.path().join("c/3/0"), b"not zstd").unwrap();
    let mut reader = Reader::open(&arguments(folder.path(), 2)).unwrap();
    let mut memory = vec![vec![0u32; 8]; 3];
    for batch in &mut memory {
        // SAFETY: the vectors outlive the reader's threads, which end with it below.
        unsafe { reader.submit(&[batch.as_mut_ptr() as usize]).unwrap() };
    }
    reader.next_batch().unwrap();
    for _ in 0..2 {
        let error = reader.next_batch().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("chunk [3, 0]") && text.contains("c/3/0") && text.contains("copy"), "{text}");
        assert_eq!(error.kind(), ErrorKind::Runtime);
    }
    drop(reader);
}

#[test]
fn a_reader_can_be_dropped_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[64, 50], &[3, 7], Chain::Zstd, 0);
    for submitted in 0..20 {
        let mut memory = vec![vec![0u32; 50 * 8]; submitted];
        let mut reader = Reader::open(&arguments(folder.path(), 8)).unwrap();
        for batch in &mut memory {
            // SAFETY: the vectors outlive the reader.
            unsafe { reader.submit(&[batch.as_mut_ptr() as usize]).unwrap() };
        }
        if submitted > 3 {
            reader.next_batch().unwrap();
        }
        drop(reader);
    }
}
