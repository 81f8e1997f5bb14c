#pragma once
// Writes the decoded bytes: literals and matches.
//
// The warps of a thread block share a chunk. They take groups of 32 sequences in turns, and cut
// what a group regenerates into pieces:
//
//   piece:
//     mark where its sequences begin, so that byte p belongs to sequence (marks up to p) - 1
//     wait until all bytes before its farthest match's end are written
//     for each row of 32 bytes, a lane a byte: literal, or byte of a match -> shared memory
//       a match of bytes of the piece itself: rows in order; in a row, sources are followed to
//       their end
//     shared memory -> decoded bytes, in 16-byte stores
//
// Each warp publishes where its piece begins: all before the least of these is written. The warp
// with the least one never waits, so there is no deadlock. Resolve and chain have checked that each
// literal, match and byte is inside.

#include "zstd_resolve.cuh"

namespace zstd_gpu {

constexpr uint32_t kPieceBytes = 1024, kRowBytes = warp::kLanes, kRows = 6;
static_assert(kPieceBytes / kRowBytes == warp::kLanes, "a lane clears a row's marks");

/// A sequence of a group: its bytes below `match` are literals, byte p number p + literal; others
/// are copies from `offset` before. Positions count from the group's first byte.
struct alignas(16) Run {
  uint32_t match, literal, offset, padding;
};

/// Shared memory of a warp.
struct alignas(16) ExecuteShared {
  Run runs[kGroup];
  uint32_t marks[kPieceBytes / kRowBytes];
  uint8_t bytes[kPieceBytes + 16];
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
  uint8_t* to;        // its first byte
  uint32_t position;  // of that in the chunk
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
                         offset, 0};
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

/// Where the last byte before the group that matches of the piece copy ends, as a position in the
/// chunk.
template <class W>
WARP_FN uint32_t needed(const ExecuteShared& shared, const GroupPlace& group, uint32_t begin,
                        uint32_t size, const Extents<W>& extents) {
  typename W::template Var<uint32_t> until;
  W::each([&](uint32_t lane) {
    until[lane] = 0;
    const Run run = shared.runs[lane];
    const uint32_t end = extents.ends[lane] < begin + size ? extents.ends[lane] : begin + size;
    if (lane >= group.count || extents.ends[lane] <= begin || run.match >= end) return;
    const uint32_t copied = group.position + end - run.offset;
    until[lane] = copied < group.position ? copied : group.position;
  });
  return W::largest(until);
}

constexpr uint32_t kKnown = 0xFFFFFFFF;

/// Rows of a piece, and what of it is the same for all of them.
struct Rows {
  const ExecuteShared& shared;
  uint8_t* staged;  // the piece's bytes in shared memory
  const Literals& literals;
  const GroupPlace& group;
  uint32_t begin, size;  // of the piece
};

/// How far back byte `at` of the group is copied from. An overlapping match repeats what is before
/// it.
template <bool OVERLAPS>
WARP_FN uint32_t distance(const Run& run, uint32_t at) {
  if (!OVERLAPS || at < run.match || at - run.match < run.offset) return run.offset;
  return run.offset + (at - run.match) / run.offset * run.offset;
}

/// Finds the bytes of a row whose sources are in the piece. `values` and `sources` are those of the
/// row at `row`.
template <class W>
WARP_FN void follow(const uint8_t* bytes, uint32_t row, typename W::template Var<uint32_t>& values,
                    const typename W::template Var<uint32_t>& sources) {
  typename W::template Var<uint32_t> lanes;
  typename W::template Var<bool> more;
  W::each([&](uint32_t lane) {
    lanes[lane] = lane;
    if (sources[lane] == kKnown) return;
    if (sources[lane] < row) {
      values[lane] = bytes[sources[lane]];
    } else {
      lanes[lane] = sources[lane] - row;
    }
  });
  // A source is before what is copied from it: after at most five doublings all lanes name one that
  // knows.
  for (;;) {
    const auto next = W::gather(lanes, lanes);
    W::each([&](uint32_t lane) { more[lane] = next[lane] != lanes[lane]; });
    if (!W::any(more)) break;
    lanes = next;
  }
  values = W::gather(values, lanes);
}

/// Rows `first` and on of the piece, at most kRows; `before` sequences begin before them. Returns
/// how many begin before what is next. `OVERLAPS`: some match of the group copies bytes of its own.
template <class W, bool OVERLAPS>
WARP_FN uint32_t execute_rows(const Rows& rows, uint32_t first, uint32_t before) {
  typename W::template Var<uint32_t> values[kRows], sources[kRows];
  typename W::template Var<bool> inside;
  W::each([&](uint32_t lane) { inside[lane] = false; });
  // One load a lane and row, without branches between them: all are on their way before the first
  // is waited for.
  WARP_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t row = (first + i) * kRowBytes;
    // Marks of rows behind the piece are 0, except that there are none behind the last.
    const uint32_t marks = row < rows.size ? rows.shared.marks[first + i] : 0;
    W::each([&](uint32_t lane) {
      const uint32_t at = rows.begin + row + lane;
      const Run run = rows.shared.runs[before + warp::count_bits(marks & ((2u << lane) - 1)) - 1];
      const bool is_literal = at < run.match;
      const uint32_t literal = (at + run.literal) & rows.literals.mask;
      const int32_t source = static_cast<int32_t>(at - distance<OVERLAPS>(run, at));
      const bool is_inside = !is_literal && source >= static_cast<int32_t>(rows.begin);
      const uint8_t* from = is_literal ? rows.literals.from + literal
                                       : static_cast<const uint8_t*>(rows.group.to) + source;
      const bool exists = row + lane < rows.size;
      values[i][lane] = 0;
      if (exists && !is_inside) values[i][lane] = *from;
      sources[i][lane] = exists && is_inside ? static_cast<uint32_t>(source) - rows.begin : kKnown;
      inside[lane] = inside[lane] || (exists && is_inside);
    });
    before += warp::count_bits(marks);
  }
  const bool any_inside = W::any(inside);
  WARP_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t row = (first + i) * kRowBytes;
    if (any_inside) {
      W::sync();
      follow<W>(rows.staged, row, values[i], sources[i]);
    }
    W::each([&](uint32_t lane) {
      if (row + lane < rows.size) rows.staged[row + lane] = static_cast<uint8_t>(values[i][lane]);
    });
  }
  return before;
}

/// Copies a piece to its place; `shared` has it at the same distance from a multiple of 16.
template <class W>
WARP_FN void store_piece(const ExecuteShared& shared, uint8_t* to, uint32_t size) {
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) & 15),
                 end = shift + size;
  const uint32_t wide_from = shift ? 16 : 0, wide_to = end / 16 * 16;
  to -= shift;
  W::sync();
  W::each([&](uint32_t lane) {
    for (uint32_t at = wide_from + lane * 16; at < wide_to; at += warp::kLanes * 16) {
      *reinterpret_cast<warp::Wide*>(to + at) =
          *reinterpret_cast<const warp::Wide*>(shared.bytes + at);
    }
    // The ends, a lane a byte: up to 15 before the first whole 16 bytes, and as many behind the
    // last.
    const bool head = lane < 16;
    const uint32_t at = head ? lane : wide_to + lane - 16;
    if (head ? at >= shift && at < wide_from && at < end : at >= wide_from && at < end)
      to[at] = shared.bytes[at];
  });
  W::sync();
}

/// Executes a group of sequences.
template <class W, class Progress>
WARP_FN void execute_group(ExecuteShared& shared, const Progress& progress,
                           const Sequences<W>& sequences, const Summary& summary,
                           const Literals& literals, uint8_t* block_to) {
  GroupPlace group = {block_to + sequences.first.bytes, summary.base + sequences.first.bytes,
                      sequences.count, false};
  const Extents<W> extents = lay_out<W>(shared, sequences, summary, group);
  const uint32_t bytes = sequences.bytes();
  for (uint32_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const uint32_t size = bytes - begin < kPieceBytes ? bytes - begin : kPieceBytes;
    uint32_t before = mark_starts<W>(shared, group, begin, size, extents);
    if (begin > 0) progress.publish(group.position + begin);
    progress.wait(needed<W>(shared, group, begin, size, extents));
    uint8_t* to = group.to + begin;
    const Rows rows = {shared,   shared.bytes + (reinterpret_cast<uintptr_t>(to) & 15),
                       literals, group,
                       begin,    size};
    WARP_NO_UNROLL
    for (uint32_t row = 0; row * kRowBytes < size; row += kRows) {
      before = group.overlaps ? execute_rows<W, true>(rows, row, before)
                              : execute_rows<W, false>(rows, row, before);
    }
    store_piece<W>(shared, to, size);
  }
}

/// Copies literals to where they belong, at most kPieceBytes.
template <class W>
WARP_FN void copy_literals(const Literals& literals, uint32_t first, uint8_t* to, uint32_t size) {
  W::each([&](uint32_t lane) {
    constexpr uint32_t kAtOnce = 8;
    for (uint32_t at = lane; at < size; at += kAtOnce * warp::kLanes) {
      uint8_t values[kAtOnce];
      WARP_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t number = at + i * warp::kLanes;
        values[i] = number < size ? literals.from[(first + number) & literals.mask] : uint8_t{0};
      }
      WARP_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t number = at + i * warp::kLanes;
        if (number < size) to[number] = values[i];
      }
    }
  });
}

/// Executes what falls to warp `number` of `count` in a block; `turn` counts groups and pieces of
/// literals of the chunk.
template <class W, class Progress>
WARP_FN void execute_block(const Launch& launch, const Chunk& chunk, uint32_t block_number,
                           ExecuteShared& shared, const Progress& progress, uint32_t number,
                           uint32_t count, uint32_t& turn) {
  const Block& block = launch.blocks[block_number];
  const Summary& summary = launch.summaries[block_number];
  const Literals literals = literals_of(launch, block, chunk);
  uint8_t* to = reinterpret_cast<uint8_t*>(chunk.to) + summary.base;
  const uint32_t group_count = (block.sequences + kGroup - 1) / kGroup;
  // turn % count is the warp whose turn the next group is.
  uint32_t group = (number + count - turn % count) % count;
  Sequences<W> next;
  if (group < group_count) {
    next.read(launch, block, summary, group);
    progress.publish(summary.base + next.first.bytes);
  }
  while (group < group_count) {
    const Sequences<W> sequences = next;
    group += count;
    if (group < group_count) next.read(launch, block, summary, group);
    execute_group<W>(shared, progress, sequences, summary, literals, to);
    // At once, so that nobody waits for what is done.
    progress.publish(summary.base + (group < group_count ? next.first : sequences.after).bytes);
  }
  const uint32_t rest = block.literals - summary.sequence_literals;
  const uint32_t pieces = (rest + kPieceBytes - 1) / kPieceBytes;
  for (uint32_t piece = group - group_count; piece < pieces; piece += count) {
    const uint32_t at = piece * kPieceBytes;
    const uint32_t place = summary.sequence_bytes + at;
    progress.publish(summary.base + place);
    copy_literals<W>(literals, summary.sequence_literals + at, to + place,
                     rest - at < kPieceBytes ? rest - at : kPieceBytes);
  }
  turn += group_count + pieces;
}

}  // namespace zstd_gpu
