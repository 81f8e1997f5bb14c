#pragma once
// Groups of 32 resolved sequences, laid out in shared memory: which sequence a byte of the group
// belongs to, and whether it is a literal of it or a byte of its match.
//
//   runs    where a sequence's match begins, and what its bytes are copied from
//   marks   a bit for each byte with which a sequence begins, so that byte p belongs to sequence
//           (marks up to p) - 1

#include "zstd_resolve.cuh"

namespace zstd_gpu {

constexpr uint32_t kPieceBytes = 1024, kRowBytes = warp::kLanes;
static_assert(kPieceBytes / kRowBytes == warp::kLanes, "a lane clears a row's marks");

/// A sequence of a group: its bytes below `match` are literals, byte p number p + literal; others
/// are copies from `offset` before: byte p is that of byte p + source of the tile, modulo 2^32, in
/// the match's first period. Positions count from the group's first byte.
struct alignas(16) Run {
  uint32_t match, literal, offset, source;
};

/// Where literals come from: byte `number & mask`.
struct Literals {
  const uint8_t* from;
  uint32_t mask;
};

WARP_FN Literals literals_of(const Launch& launch, const Block& block, const Chunk& chunk) {
  if (block.literal_kind == kHuffmanLiterals) {
    return {reinterpret_cast<const uint8_t*>(launch.literals + block.literals_to), ~0u};
  }
  return {reinterpret_cast<const uint8_t*>(chunk.from) + block.literals_at,
          block.literal_kind == kRawLiterals ? ~0u : 0u};
}

/// A group of sequences, read ahead.
template <class W>
struct Sequences {
  typename W::template Var<Record> records;
  Group first, after;  // where it and the next one begin in the block
  uint32_t count;

  /// Group `number` of a block.
  WARP_FN void read(const Launch& launch, const Block& block, const Summary& summary,
                    uint32_t number) {
    const Record* from =
        reinterpret_cast<const Record*>(launch.records + block.records_to) + number * kGroup;
    const Group* groups = reinterpret_cast<const Group*>(launch.groups + block.groups_to);
    const uint32_t rest = block.sequences - number * kGroup;
    count = rest < kGroup ? rest : kGroup;
    first = groups[number];
    if (rest > kGroup) {
      after = groups[number + 1];
    } else {
      after = {summary.sequence_bytes, summary.sequence_literals};
    }
    W::each([&](uint32_t lane) { records[lane] = lane < count ? from[lane] : 0; });
  }
  WARP_FN uint32_t bytes() const { return after.bytes - first.bytes; }
  WARP_FN uint32_t literals() const { return after.literals - first.literals; }
};

/// A group as all lanes see it.
struct GroupPlace {
  uint32_t position;  // of its first byte in the tile, modulo 2^32
  uint32_t count;     // sequences
  bool overlaps;      // a match copies bytes of its own
};

/// Where each lane's sequence begins and ends.
template <class W>
struct Extents {
  typename W::template Var<uint32_t> starts, ends;
};

/// Puts the sequences of a group into `shared.runs`.
template <class W, class Shared>
WARP_FN Extents<W> lay_out(Shared& shared, const Sequences<W>& sequences, const Summary& summary,
                           GroupPlace& place) {
  Extents<W> extents;
  typename W::template Var<uint32_t> literals;
  typename W::template Var<bool> overlaps;
  constexpr uint32_t kPlace = (1 << kPlaceBits) - 1;
  W::each([&](uint32_t lane) {
    const Record record = sequences.records[lane];
    // Behind the last sequence is the group's end.
    const bool exists = lane < sequences.count;
    extents.starts[lane] = exists ? static_cast<uint32_t>(record) & kPlace : sequences.bytes();
    literals[lane] =
        exists ? static_cast<uint32_t>(record >> kPlaceBits) & kPlace : sequences.literals();
  });
  extents.ends = W::from_next(extents.starts, sequences.bytes());
  const auto literals_after = W::from_next(literals, sequences.literals());
  W::each([&](uint32_t lane) {
    uint32_t offset = static_cast<uint32_t>(sequences.records[lane] >> 2 * kPlaceBits);
    if (offset & kFromInitial) {
      const uint32_t initial = offset >> kInitialShift & 3;
      offset = (initial == 0   ? summary.initial[0]
                : initial == 1 ? summary.initial[1]
                               : summary.initial[2]) -
               (offset & ((1u << kInitialShift) - 1));
    }
    const uint32_t match = extents.starts[lane] + literals_after[lane] - literals[lane];
    overlaps[lane] = lane < sequences.count && extents.ends[lane] - match > offset;
    shared.runs[lane] = {match, sequences.first.literals + literals[lane] - extents.starts[lane],
                         offset, place.position - offset};
  });
  place.overlaps = W::any(overlaps);
  return extents;
}

/// Marks the beginnings of the group's sequences inside the piece at `begin`; returns how many
/// begin before it.
template <class W, class Shared>
WARP_FN uint32_t mark_starts(Shared& shared, const GroupPlace& group, uint32_t begin, uint32_t size,
                             const Extents<W>& extents) {
  typename W::template Var<bool> before;
  W::each([&](uint32_t lane) { shared.marks[lane] = 0; });
  W::sync();
  W::each([&](uint32_t lane) {
    const uint32_t start = extents.starts[lane], at = start - begin;
    before[lane] = lane < group.count && start < begin;
    if (lane < group.count && start >= begin && at < size)
      W::set_bits(&shared.marks[at / kRowBytes], 1u << at % kRowBytes);
  });
  W::sync();
  return warp::count_bits(W::ballot(before));
}

/// The byte of the tile, modulo 2^32, that byte `at` of the group's matches is copied from. An
/// overlapping match repeats what is before it.
template <bool OVERLAPS>
WARP_FN uint32_t source_of(const Run& run, uint32_t at) {
  uint32_t source = at + run.source;
  if (OVERLAPS && at >= run.match && at - run.match >= run.offset)
    source -= (at - run.match) / run.offset * run.offset;
  return source;
}

}  // namespace zstd_gpu
