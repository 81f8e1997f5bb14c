//! The sizes and the work list of a group of chunks, as a GPU worker decodes them together. Nothing here calls the GPU.

mod plan;
mod sizes;
mod work_list;

pub use plan::{CacheCopy, FrameOfTask, GroupPlan};
pub use sizes::{Sizes, Target, target, unit_bytes};
pub use work_list::{Lists, WorkList};

#[cfg(test)]
mod tests {
    use super::sizes::ARENA_SLACK;
    use super::*;
    use crate::assemble::Conversion;
    use crate::assemble::device::Regions;
    use crate::batch::{Batch, Progress};
    use crate::codec::work::{Checksum, Decoder, Expected, Pass, Stream};
    use crate::codec::zstd::VALID_FRAME;
    use crate::codec::{DecodePath, Work};
    use crate::dataset::{ElementType, StoredType};
    use crate::decode::chunk::Chunk;
    use crate::decode::gpu_task::{ELEMENT_ALIGNMENT, GpuTask, Payload};
    use crate::error::Context;
    use crate::gpu::DeviceMemory;
    use crate::plan::{ChunkKey, CopyBox, Dims};
    use proptest::prelude::*;
    use smallvec::smallvec;
    use std::ops::Range;
    use std::sync::Arc;

    /// Work with streams and passes of all kinds. It need not make sense.
    fn work() -> impl Strategy<Value = Work> {
        let decoder = prop::sample::select(vec![
            Decoder::Stored,
            Decoder::Lz4,
            Decoder::BloscLz,
            Decoder::Snappy,
            Decoder::Inflate,
            Decoder::Zstd(crate::codec::zstd::blocks(&VALID_FRAME, 0).unwrap()),
        ]);
        let pass = prop_oneof![
            Just(Pass::UndoDelta { element_bytes: 4 }),
            Just(Pass::Unshuffle { bits: true, start: 0, end: 8, element_bytes: 4, block_bytes: 8 }),
            Just(Pass::Check { checksum: Checksum::Crc32, start: 0, end: 8, expected: Expected::At(4) }),
        ];
        let streams = prop::collection::vec((decoder, 0u64..50, 0u64..900), 0..6);
        (1u64..2000, 0u64..9, streams, prop::collection::vec(pass, 0..5)).prop_map(
            |(bytes, start, streams, passes)| Work {
                streams: streams
                    .into_iter()
                    .map(|(decoder, from, size)| Stream {
                        decoder,
                        from: from..from + 40,
                        to: 0..size.min(bytes),
                    })
                    .collect(),
                passes,
                bytes: bytes + start,
                elements: start..bytes + start,
                swaps_bytes: false,
            },
        )
    }

    #[test]
    fn an_arena_for_a_number_of_boxes_holds_them_in_one_unit_or_in_many() {
        const BOXES: u64 = 16;
        let read = StoredType::Element(ElementType::Float32);
        let conversion = Conversion::new(read, None, None, None, Some(ElementType::Float16)).unwrap();
        assert!(Regions::conversion_bytes(&conversion) > 0);
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let piece = CopyBox {
            from: 0,
            to: 0,
            extents: smallvec![2, 2],
            from_strides: smallvec![3, 1],
            to_strides: smallvec![4, 1],
        };
        let unit = || batch.unit(0, smallvec![piece.clone()]);
        let key = ChunkKey { array: 0, part: 0, number: 0 };
        let chunk = Chunk::new(key, Dims::new(), None, unit());
        let units = (0..BOXES).map(|_| unit()).collect();
        let task = GpuTask { units, ..GpuTask::new(chunk, Payload::Missing, Context::default()) };
        let needed = Sizes::default().with(&task, &conversion).arena_bytes(0);
        assert!(needed <= unit_bytes(None, &DecodePath::Cpu(String::new()), &conversion, BOXES).unwrap());
    }

    proptest! {
        #[test]
        fn chunks_of_a_group_have_disjoint_areas_that_fit(
            works in prop::collection::vec((work(), any::<bool>()), 1..8),
            builtin_zstd: bool,
        ) {
            const ENCODED: u64 = 1 << 20;
            const TARGET: u64 = 1 << 10;
            let start = 1 << 30;
            let mut plan = GroupPlan { areas: start, builtin_zstd, ..GroupPlan::default() };
            let mut sizes = Sizes::default();
            let mut taken: Vec<Range<u64>> = vec![];
            for (unit, (work, has_target)) in works.iter().enumerate() {
                sizes = sizes.with_work(work, *has_target);
                let areas = plan.areas;
                let target = has_target.then_some(TARGET);
                let elements = plan.chunk(unit, 0, ENCODED, work, unit % 3 == 0, target);
                let in_place = work.streams.is_empty() && work.areas() == 1;
                match (in_place, has_target) {
                    (true, _) => prop_assert_eq!(elements, ENCODED + work.elements.start),
                    (_, true) => prop_assert_eq!(elements, TARGET + work.elements.start),
                    (_, false) => {
                        prop_assert_eq!(elements % ELEMENT_ALIGNMENT, 0);
                        prop_assert!(elements >= areas && elements + work.elements.end - work.elements.start <= plan.areas);
                    }
                }
                taken.push(areas..plan.areas);
            }
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert_eq!(plan.areas - start, sizes.areas);
            let mut list = WorkList::new(0);
            plan.put(&mut list, sizes.zstd.largest);
            if builtin_zstd {
                prop_assert_eq!(plan.builtin_frames.len() as u64, sizes.zstd.count);
                prop_assert_eq!((plan.blocks.len() as u64, plan.place.scratch_bytes()), (sizes.zstd_blocks, sizes.place.scratch_bytes()));
                prop_assert!(plan.frames.frames.is_empty() && plan.checked.is_empty());
                return Ok(());
            }
            prop_assert_eq!(plan.frames.frames.len() as u64, sizes.zstd.count);
            // Entry i of nvCOMP's arrays is the frame that check number i may take out of them.
            for (i, checked) in plan.checked.iter().enumerate() {
                prop_assert_eq!(plan.frames.encoded[i], checked.from);
            }

            prop_assert!(list.bytes().len() as u64 <= sizes.work_list + ARENA_SLACK / 4);
        }

        #[test]
        fn the_parts_of_an_arena_are_aligned_disjoint_and_within_it(
            works in prop::collection::vec((work(), any::<bool>()), 1..8),
            scratch in 0u64..100_000,
            more in 0u64..10_000,
        ) {
            let add = |sizes: Sizes, (work, has_target): &(Work, bool)| sizes.with_work(work, *has_target);
            let sizes = works.iter().fold(Sizes::default(), add);
            // An arena is aligned, but may have any size.
            let (address, bytes) = (1 << 30, sizes.arena_bytes(scratch) + more);
            let layout = sizes.layout(address, bytes);
            prop_assert_eq!((layout.areas, layout.areas + sizes.areas), (address, layout.scratch.start));
            prop_assert!(layout.scratch.end - layout.scratch.start >= scratch);
            prop_assert!(layout.scratch.end <= layout.work_list);
            prop_assert!(layout.work_list + sizes.work_list + ARENA_SLACK / 4 <= address + bytes);
            for part in [layout.scratch.start, layout.work_list] {
                prop_assert_eq!(part % DeviceMemory::ALIGNMENT, 0);
            }
        }
    }
}
