//! The whole road on the CPU backend against zarrs' own reading, without DALI.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zarr_dali::error::Kind;
use zarr_dali::options::Arguments;
use zarr_dali::reader::Reader;
use zarrs::array::codec::{GzipCodec, ShardingCodecBuilder, ZstdCodec};
use zarrs::array::{ArrayBuilder, ArrayBytes, ArraySubset, BytesToBytesCodecTraits, data_type};
use zarrs::filesystem::FilesystemStore;

#[derive(Clone, Copy, Debug)]
enum Chain {
    Raw,
    Zstd,
    Gzip,
    Sharded,
}

/// Writes a float32 array whose elements are their own flat number, except for chunks that are left out.
fn write(folder: &Path, shape: &[u64], chunk: &[u64], chain: Chain, omit_every: u64) {
    let store = Arc::new(FilesystemStore::new(folder).unwrap());
    let zstd: Arc<dyn BytesToBytesCodecTraits> = Arc::new(ZstdCodec::new(1, false));
    let mut grid = chunk.to_vec();
    if matches!(chain, Chain::Sharded) {
        grid.iter_mut().for_each(|n| *n *= 2);
    }
    let mut builder = ArrayBuilder::new(shape.to_vec(), grid.clone(), data_type::float32(), f32::NAN);
    match chain {
        Chain::Raw => builder.bytes_to_bytes_codecs(vec![]),
        Chain::Zstd => builder.bytes_to_bytes_codecs(vec![zstd]),
        Chain::Gzip => builder.bytes_to_bytes_codecs(vec![Arc::new(GzipCodec::new(1).unwrap())]),
        Chain::Sharded => {
            let inner = chunk.iter().map(|&n| NonZeroU64::new(n).unwrap()).collect();
            let mut sharding = ShardingCodecBuilder::new(inner, &data_type::float32());
            sharding.bytes_to_bytes_codecs(vec![zstd]);
            builder.array_to_bytes_codec(sharding.build_arc()).bytes_to_bytes_codecs(vec![])
        }
    };
    let array = builder.build(store, "/").unwrap();
    array.store_metadata().unwrap();
    let len: u64 = shape.iter().product();
    let bytes: Vec<u8> = (0..len).flat_map(|i| (i as f32).to_ne_bytes()).collect();
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

fn expected(reader: &Reader, folder: &Path, output: usize, samples: usize) -> Vec<u32> {
    let store = Arc::new(FilesystemStore::new(folder).unwrap());
    let array = zarrs::array::Array::open(store, "/").unwrap();
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
        let bytes: ArrayBytes = array.retrieve_array_subset(&ArraySubset::new_with_ranges(&ranges)).unwrap();
        let bytes = bytes.into_fixed().unwrap();
        all.extend(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_ne_bytes(*b)));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn batches_hold_what_zarrs_reads(
        dims in prop::collection::vec((1u64..8, 1u64..4), 1..4),
        chain in prop::sample::select(vec![Chain::Raw, Chain::Zstd, Chain::Gzip, Chain::Sharded]),
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
            prop_assert_eq!(batch, &expected(&upto, folder.path(), 0, batch_size as usize), "batch {}", number);
        }
        prop_assert_eq!(read(&mut again, batch_size as u64, 4), whole);
    }
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
    assert!(error.to_string().contains("\"window\":[2]"), "{error}");
    assert_eq!(error.kind(), Kind::Runtime);
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
        assert_eq!(error.kind(), Kind::Runtime);
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
