#pragma once
// Writes the decoded bytes: literals and matches.
//
// The warps of a thread block share a chunk. They take groups of 32 sequences in turns, and cut what a group regenerates
// into pieces:
//
//   piece:
//     mark where its sequences begin, so that byte p belongs to sequence (marks up to p) - 1
//     wait until all bytes before its farthest match's end are written
//     for each row of 32 bytes, a lane a byte: literal, or byte of a match -> shared memory
//       a match of bytes of the piece itself: rows in order; in a row, sources are followed to their end
//     shared memory -> decoded bytes, in 16-byte stores
//
// Each warp publishes where its piece begins: all before the least of these is written. The warp with the least one never
// waits, so there is no deadlock. Resolve and chain have checked that each literal, match and byte is inside.

#include "zstd_resolve.cuh"

namespace zstd_gpu {

constexpr uint32_t kPieceBytes = 1024, kRowBytes = warp::kLanes, kRows = 8;
static_assert(kPieceBytes / kRowBytes == warp::kLanes, "a lane clears a row's marks");

/// A sequence of a group: its bytes below `match` are literals, number + literal of them; those from there on come from
/// `offset` before.
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

/// A group as all lanes see it.
struct GroupPlace {
  uint8_t* to;        // its first byte
  uint32_t position;  // of that in the chunk
  uint32_t bytes;
};

/// Puts the sequences of a group into `shared.runs`; `starts` are their places in it, those that are none have no mark.
template <class W>
WARP_FN uint32_t lay_out(ExecuteShared& shared, const Record* records, uint32_t count,
                         const Summary& summary, uint32_t first_literal,
                         typename W::template Var<uint32_t>& starts,
                         typename W::template Var<uint32_t>& ends) {
  typename W::template Var<uint32_t> literals, bytes;
  typename W::template Var<Record> all;
  W::each([&](uint32_t lane) {
    all[lane] = lane < count ? records[lane] : 0;
    constexpr uint32_t kLength = (1 << kLengthBits) - 1;
    literals[lane] = static_cast<uint32_t>(all[lane]) & kLength;
    const uint32_t match = (static_cast<uint32_t>(all[lane] >> kLengthBits) & kLength) + kMinMatch;
    bytes[lane] = lane < count ? literals[lane] + match : 0;
  });
  const auto literals_to = W::up_to(literals);
  ends = W::up_to(bytes);
  W::each([&](uint32_t lane) {
    starts[lane] = ends[lane] - bytes[lane];
    uint32_t offset = static_cast<uint32_t>(all[lane] >> 2 * kLengthBits);
    if (offset & kFromInitial) {
      const uint32_t initial = offset >> kInitialShift & 3;
      offset = (initial == 0   ? summary.initial[0]
                : initial == 1 ? summary.initial[1]
                               : summary.initial[2]) -
               (offset & ((1u << kInitialShift) - 1));
    }
    shared.runs[lane] = {starts[lane] + literals[lane],
                         first_literal + literals_to[lane] - literals[lane] - starts[lane], offset, 0};
  });
  return W::of_lane(ends, warp::kLanes - 1);
}

/// Marks the beginnings of the group's sequences inside the piece at `begin`; returns how many begin before it.
template <class W>
WARP_FN uint32_t mark_starts(ExecuteShared& shared, uint32_t count, uint32_t begin, uint32_t size,
                             const typename W::template Var<uint32_t>& starts) {
  typename W::template Var<bool> before;
  W::each([&](uint32_t lane) { shared.marks[lane] = 0; });
  W::sync();
  W::each([&](uint32_t lane) {
    before[lane] = lane < count && starts[lane] < begin;
    const uint32_t at = starts[lane] - begin;
    if (lane < count && starts[lane] >= begin && at < size)
      W::set_bits(&shared.marks[at / kRowBytes], 1u << at % kRowBytes);
  });
  W::sync();
  return warp::count_bits(W::ballot(before));
}

/// Where the last byte before the group that matches of the piece copy ends, as a position in the chunk.
template <class W>
WARP_FN uint32_t needed(const ExecuteShared& shared, uint32_t count, const GroupPlace& group,
                        uint32_t begin, uint32_t size,
                        const typename W::template Var<uint32_t>& starts,
                        const typename W::template Var<uint32_t>& ends) {
  typename W::template Var<uint32_t> until;
  W::each([&](uint32_t lane) {
    until[lane] = 0;
    if (lane >= count || ends[lane] <= begin || starts[lane] >= begin + size) return;
    const Run run = shared.runs[lane];
    const uint32_t end = ends[lane] < begin + size ? ends[lane] : begin + size;
    if (run.match >= end) return;
    const uint32_t copied = group.position + end - run.offset;
    until[lane] = copied < group.position ? copied : group.position;
  });
  return W::largest(until);
}

constexpr uint32_t kKnown = 0xFFFFFFFF;

/// The byte at `at` of the group, or where it comes from inside the piece.
struct Fetched {
  uint32_t value, source;
};

WARP_FN Fetched fetch(const Run& run, const Literals& literals, const GroupPlace& group,
                      uint32_t begin, uint32_t at) {
  if (at < run.match) return {literals.from[(run.literal + at) & literals.mask], kKnown};
  uint32_t back = run.offset;
  // An overlapping match repeats what is before it.
  if (at - run.match >= run.offset) back += (at - run.match) / run.offset * run.offset;
  const int32_t source = static_cast<int32_t>(at - back);
  if (source >= static_cast<int32_t>(begin)) return {0, static_cast<uint32_t>(source) - begin};
  return {group.to[source], kKnown};
}

/// Finds the bytes of a row whose sources are in the piece. `values` and `sources` are those of the row at `row`.
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
  // A source is before what is copied from it: after at most five doublings all lanes name one that knows.
  for (;;) {
    const auto next = W::gather(lanes, lanes);
    W::each([&](uint32_t lane) { more[lane] = next[lane] != lanes[lane]; });
    if (!W::any(more)) break;
    lanes = next;
  }
  values = W::gather(values, lanes);
}

/// Rows `first` and on of the piece, at most kRows, to `shared`.
template <class W>
WARP_FN uint32_t execute_rows(ExecuteShared& shared, uint8_t* bytes, const Literals& literals,
                              const GroupPlace& group, uint32_t begin, uint32_t size, uint32_t first,
                              uint32_t sequences_before) {
  typename W::template Var<uint32_t> values[kRows], sources[kRows];
  typename W::template Var<bool> inside;
  WARP_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t row = (first + i) * kRowBytes;
    if (row < size) {
      const uint32_t marks = shared.marks[first + i];
      W::each([&](uint32_t lane) {
        values[i][lane] = 0;
        sources[i][lane] = kKnown;
        if (row + lane >= size) return;
        const uint32_t sequence = sequences_before + warp::count_bits(marks & ((2u << lane) - 1)) - 1;
        const Fetched fetched =
            fetch(shared.runs[sequence], literals, group, begin, begin + row + lane);
        values[i][lane] = fetched.value;
        sources[i][lane] = fetched.source;
      });
      sequences_before += warp::count_bits(marks);
    }
  }
  WARP_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t row = (first + i) * kRowBytes;
    if (row < size) {
      W::each([&](uint32_t lane) { inside[lane] = sources[i][lane] != kKnown; });
      if (W::any(inside)) {
        W::sync();
        follow<W>(bytes, row, values[i], sources[i]);
      }
      W::each([&](uint32_t lane) {
        if (row + lane < size) bytes[row + lane] = static_cast<uint8_t>(values[i][lane]);
      });
    }
  }
  return sequences_before;
}

/// Copies a piece to its place; `shared` has it at the same distance from a multiple of 16.
template <class W>
WARP_FN void store_piece(const ExecuteShared& shared, uint8_t* to, uint32_t size) {
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) & 15);
  W::sync();
  W::each([&](uint32_t lane) {
    for (uint32_t at = lane * 16; at < shift + size; at += warp::kLanes * 16) {
      if (at >= shift && at + 16 <= shift + size) {
        *reinterpret_cast<warp::Wide*>(to - shift + at) =
            *reinterpret_cast<const warp::Wide*>(shared.bytes + at);
      } else {
        const uint32_t from = at < shift ? shift : at;
        const uint32_t until = at + 16 < shift + size ? at + 16 : shift + size;
        for (uint32_t i = from; i < until; ++i) to[static_cast<int32_t>(i - shift)] = shared.bytes[i];
      }
    }
  });
  W::sync();
}

/// Executes `count` sequences, at most 32, from the byte and literal of `place` on.
template <class W, class Progress>
WARP_FN void execute_group(ExecuteShared& shared, const Progress& progress, const Record* records,
                           uint32_t count, const Summary& summary, const Literals& literals,
                           uint32_t first_literal, GroupPlace group) {
  typename W::template Var<uint32_t> starts, ends;
  const uint32_t bytes = lay_out<W>(shared, records, count, summary, first_literal, starts, ends);
  for (uint32_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const uint32_t size = bytes - begin < kPieceBytes ? bytes - begin : kPieceBytes;
    uint32_t before = mark_starts<W>(shared, count, begin, size, starts);
    if (begin > 0) progress.publish(group.position + begin);
    progress.wait(needed<W>(shared, count, group, begin, size, starts, ends));
    uint8_t* to = group.to + begin;
    uint8_t* staged = shared.bytes + (reinterpret_cast<uintptr_t>(to) & 15);
    for (uint32_t row = 0; row * kRowBytes < size; row += kRows) {
      before = execute_rows<W>(shared, staged, literals, group, begin, size, row, before);
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

/// Executes what falls to warp `number` of `count` in a block; `turn` counts groups and pieces of literals of the chunk.
template <class W, class Progress>
WARP_FN void execute_block(const Launch& launch, const Chunk& chunk, uint32_t block_number,
                           ExecuteShared& shared, const Progress& progress, uint32_t number,
                           uint32_t count, uint32_t& turn) {
  const Block& block = launch.blocks[block_number];
  const Summary& summary = launch.summaries[block_number];
  const Literals literals = literals_of(launch, block, chunk);
  const Record* records = reinterpret_cast<const Record*>(launch.records + block.records_to);
  const Group* groups = reinterpret_cast<const Group*>(launch.groups + block.groups_to);
  uint8_t* to = reinterpret_cast<uint8_t*>(chunk.to) + summary.base;
  const uint32_t group_count = (block.sequences + kGroup - 1) / kGroup;
  // turn % count is the warp whose turn the next group is.
  uint32_t group = (number + count - turn % count) % count;
  for (; group < group_count; group += count) {
    const Group place = groups[group];
    const uint32_t first = group * kGroup;
    progress.publish(summary.base + place.bytes);
    execute_group<W>(shared, progress, records + first,
                     block.sequences - first < kGroup ? block.sequences - first : kGroup, summary,
                     literals, place.literals, {to + place.bytes, summary.base + place.bytes, 0});
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
