#pragma once
// Execute: writes the decoded bytes, literals and matches, in parallel within a chunk.
//
// A chunk's decoded bytes are cut into tiles, a tile into pieces of 1024 bytes, a warp each. Every
// byte of a tile gets an entry of 4 bytes in shared memory: its value, or the byte that it is
// copied from, of the tile or before it.
//
//   tile, by the warps of a thread block:
//     expand   sequences -> entries; literals are read
//     follow   entries that name a byte of the tile take over that byte's entry, until none is
//              left; a lane keeps 32 bytes' entries in registers
//     write    bytes from before the tile are read once they are final; all are stored
//
// Only `write` depends on other tiles of the chunk: the tiles before it. Thread blocks take a
// chunk's tiles in order, so a tile waits only for tiles that others have begun, and nothing
// deadlocks whatever runs at once. Resolve and chain have checked that each literal, match and byte
// is inside.
//
// Repeats do not degenerate: pieces are cut by bytes, an overlapping match's bytes name its first
// period, and a round of `follow` makes a chain of links at least kLinks times shorter.

#include "zstd_groups.cuh"

namespace zstd_gpu {

constexpr uint32_t kTileRows = kPieceBytes / kRowBytes;  // of a piece
constexpr uint32_t kExpandRows = 2, kFollowRows = 8, kLinks = 8;
/// Tiles begin at multiples of it in memory, but for a chunk's first.
constexpr uint32_t kTileAlignment = 32;

/// What becomes of a byte of the tile: kValue | byte, kWritten, or the byte that it is copied from,
/// a number from the tile's first byte on: below 0, as int32_t, for one before the tile. The first
/// two are above 0 as int32_t.
constexpr uint32_t kKindShift = 29, kValue = 2u << kKindShift, kWritten = 3u << kKindShift;
static_assert(kMaxChunkBytes <= kValue, "entries that name a byte are below kValue as int32_t");

WARP_FN bool is_inside(uint32_t entry) { return entry < kValue; }
WARP_FN bool is_before(uint32_t entry) { return static_cast<int32_t>(entry) < 0; }
WARP_FN bool is_value(uint32_t entry) { return entry >> kKindShift == kValue >> kKindShift; }

/// Shared memory of a warp. The entries of all warps come before it.
struct alignas(16) TileShared {
  Run runs[kGroup];
  uint32_t marks[kTileRows];
};

static_assert(kPieceBytes == 1024 && sizeof(TileShared) == 640, "mirrored in Rust");

/// Shared memory of a thread block.
WARP_BOTH uint32_t tile_shared_bytes(uint32_t warps) {
  return warps * (kPieceBytes * static_cast<uint32_t>(sizeof(uint32_t)) +
                  static_cast<uint32_t>(sizeof(TileShared)));
}

/// How a chunk is cut: tile 0 ends where an aligned tile of `bytes` would.
struct Tiling {
  uint32_t shift, bytes, count;

  WARP_FN static Tiling of(const Chunk& chunk, uint32_t warps) {
    const uint32_t shift = static_cast<uint32_t>(chunk.to) % kTileAlignment;
    const uint32_t bytes = warps * kPieceBytes;
    return {shift, bytes, (shift + chunk.to_bytes + bytes - 1) / bytes};
  }
  /// Position in the chunk where a tile begins.
  WARP_FN uint32_t begin(uint32_t tile) const { return tile == 0 ? 0 : tile * bytes - shift; }
};

/// A tile, as all warps see it.
struct Tile {
  uint32_t* entries;    // shared memory
  uint32_t begin, end;  // positions in the chunk

  WARP_FN static Tile of(const Chunk& chunk, const Tiling& tiling, uint32_t number,
                         uint32_t* entries) {
    const uint32_t end = tiling.begin(number + 1);
    return {entries, tiling.begin(number), end < chunk.to_bytes ? end : chunk.to_bytes};
  }
};

/// The last of `count` > 0 numbers whose key, which does not fall, is at most `limit`; the first
/// one's is.
template <class W, class Key>
WARP_FN uint32_t last_at_most(uint32_t count, uint32_t limit, Key key) {
  uint32_t first = 0;
  typename W::template Var<bool> below;
  while (count > 1) {
    const uint32_t step = (count + warp::kLanes - 1) / warp::kLanes;
    W::each([&](uint32_t lane) {
      below[lane] = lane == 0 || (lane * step < count && key(first + lane * step) <= limit);
    });
    const uint32_t lane = warp::log2_floor(W::ballot(below));
    first += lane * step;
    count = count - lane * step < step ? count - lane * step : step;
  }
  return first;
}

/// Makes entries of bytes `begin` to `begin + size` of a group of sequences that was laid out, at
/// most kPieceBytes; `before` sequences begin before them.
template <class W, bool OVERLAPS>
WARP_FN void expand_rows(const Tile& tile, const TileShared& shared, const GroupPlace& group,
                         const Literals& literals, uint32_t begin, uint32_t size, uint32_t before) {
  uint32_t* entries = tile.entries + (group.position + begin);
  WARP_NO_UNROLL
  for (uint32_t first = 0; first * kRowBytes < size; first += kExpandRows) {
    typename W::template Var<uint32_t> found[kExpandRows];
    // The loads of all rows are on their way before the first is waited for.
    WARP_UNROLL
    for (uint32_t i = 0; i < kExpandRows; ++i) {
      const uint32_t row = (first + i) * kRowBytes;
      const uint32_t marks = row < size ? shared.marks[first + i] : 0;
      W::each([&](uint32_t lane) {
        const uint32_t at = begin + row + lane;
        const Run run = shared.runs[before + warp::count_bits(marks & ((2u << lane) - 1)) - 1];
        uint32_t entry = source_of<OVERLAPS>(run, at);
        if (row + lane < size && at < run.match)
          entry = kValue | literals.from[(at + run.literal) & literals.mask];
        found[i][lane] = entry;
      });
      before += warp::count_bits(marks);
    }
    WARP_UNROLL
    for (uint32_t i = 0; i < kExpandRows; ++i) {
      const uint32_t row = (first + i) * kRowBytes;
      W::each([&](uint32_t lane) {
        if (row + lane < size) entries[row + lane] = found[i][lane];
      });
    }
  }
}

/// Makes entries of literals from number `first` on, for `size` bytes at position `to`.
template <class W>
WARP_FN void expand_literals(const Tile& tile, const Literals& literals, uint32_t first,
                             uint32_t to, uint32_t size) {
  uint32_t* entries = tile.entries + (to - tile.begin);
  W::each([&](uint32_t lane) {
    for (uint32_t from = lane; from < size; from += kFollowRows * kRowBytes) {
      uint32_t values[kFollowRows];
      WARP_UNROLL
      for (uint32_t i = 0; i < kFollowRows; ++i) {
        const uint32_t at = from + i * kRowBytes;
        values[i] = at < size ? literals.from[(first + at) & literals.mask] : 0u;
      }
      WARP_UNROLL
      for (uint32_t i = 0; i < kFollowRows; ++i) {
        const uint32_t at = from + i * kRowBytes;
        if (at < size) entries[at] = kValue | values[i];
      }
    }
  });
}

/// Makes entries of bytes `begin` to `end` of a block, which are of one piece.
template <class W>
WARP_FN void expand_block(const Launch& launch, const Chunk& chunk, const Tile& tile,
                          TileShared& shared, uint32_t number, uint32_t begin, uint32_t end) {
  const Block& block = launch.blocks[number];
  const Summary& summary = launch.summaries[number];
  const Literals literals = literals_of(launch, block, chunk);
  const uint32_t sequences_end = end < summary.sequence_bytes ? end : summary.sequence_bytes;
  if (begin < sequences_end) {
    const Group* groups = reinterpret_cast<const Group*>(launch.groups + block.groups_to);
    const uint32_t group_count = (block.sequences + kGroup - 1) / kGroup;
    uint32_t index =
        last_at_most<W>(group_count, begin, [&](uint32_t i) { return groups[i].bytes; });
    Sequences<W> next;
    next.read(launch, block, summary, index);
    while (begin < sequences_end) {
      const Sequences<W> sequences = next;
      if (sequences.after.bytes < sequences_end) next.read(launch, block, summary, ++index);
      GroupPlace group = {summary.base + sequences.first.bytes - tile.begin, sequences.count,
                          false};
      W::sync();  // all have read the runs of the group before
      const Extents<W> extents = lay_out<W>(shared, sequences, summary, group);
      const uint32_t stop =
          sequences.after.bytes < sequences_end ? sequences.after.bytes : sequences_end;
      const uint32_t from = begin - sequences.first.bytes, size = stop - begin;
      const uint32_t before = mark_starts<W>(shared, group, from, size, extents);
      if (group.overlaps) {
        expand_rows<W, true>(tile, shared, group, literals, from, size, before);
      } else {
        expand_rows<W, false>(tile, shared, group, literals, from, size, before);
      }
      begin = stop;
    }
  }
  if (begin < end)
    expand_literals<W>(tile, literals, summary.sequence_literals + (begin - summary.sequence_bytes),
                       summary.base + begin, end - begin);
}

/// Makes entries of piece `piece` of a tile.
template <class W>
WARP_FN void expand_piece(const Launch& launch, const Chunk& chunk, const Tile& tile,
                          TileShared& shared, uint32_t piece) {
  uint32_t begin = tile.begin + piece * kPieceBytes;
  const uint32_t end = tile.end - begin < kPieceBytes ? tile.end : begin + kPieceBytes;
  if (tile.end <= begin) return;
  uint32_t number = chunk.first_block + last_at_most<W>(chunk.blocks, begin, [&](uint32_t i) {
                      return launch.summaries[chunk.first_block + i].base;
                    });
  for (; begin < end; ++number) {
    const Summary& summary = launch.summaries[number];
    const uint32_t block_end = summary.base + summary.bytes;
    const uint32_t stop = block_end < end ? block_end : end;
    if (begin < stop)
      expand_block<W>(launch, chunk, tile, shared, number, begin - summary.base,
                      stop - summary.base);
    begin = stop;
  }
}

/// The entries of a warp's piece, in registers: byte 32 i + lane is in `of[i]`.
template <class W>
struct Piece {
  typename W::template Var<uint32_t> of[kTileRows];
  uint32_t first;  // number of its first byte in the tile

  WARP_FN void read(const Tile& tile, uint32_t piece) {
    first = piece * kPieceBytes;
    const uint32_t count = tile.end - tile.begin;
    WARP_UNROLL
    for (uint32_t i = 0; i < kTileRows; ++i) {
      W::each([&](uint32_t lane) {
        const uint32_t at = first + i * kRowBytes + lane;
        of[i][lane] = at < count ? tile.entries[at] : kWritten;
      });
    }
  }

  /// Follows entries up to kLinks links inside the tile; returns whether some lead further.
  WARP_FN bool follow(const Tile& tile) {
    bool further = false;
    WARP_UNROLL
    for (uint32_t rows = 0; rows < kTileRows; rows += kFollowRows) {
      bool more = true;
      WARP_NO_UNROLL
      for (uint32_t link = 0; more && link < kLinks; ++link) {
        typename W::template Var<bool> inside;
        W::each([&](uint32_t lane) { inside[lane] = false; });
        WARP_UNROLL
        for (uint32_t i = 0; i < kFollowRows; ++i) {
          W::each([&](uint32_t lane) {
            uint32_t& entry = of[rows + i][lane];
            if (is_inside(entry)) entry = tile.entries[entry];
            inside[lane] = inside[lane] || is_inside(entry);
          });
        }
        more = W::any(inside);
      }
      further = further || more;
    }
    return further;
  }

  /// Leaves what was found for those that lead here.
  WARP_FN void leave(const Tile& tile) const {
    const uint32_t count = tile.end - tile.begin;
    WARP_UNROLL
    for (uint32_t i = 0; i < kTileRows; ++i) {
      W::each([&](uint32_t lane) {
        const uint32_t at = first + i * kRowBytes + lane;
        if (at < count) tile.entries[at] = of[i][lane];
      });
    }
  }

  /// Stores the bytes that are known or are copied from positions below `final`, which is at most
  /// where the tile begins; returns whether some are left.
  WARP_FN bool write(const Chunk& chunk, const Tile& tile, uint32_t final) {
    uint8_t* tile_to = reinterpret_cast<uint8_t*>(chunk.to) + tile.begin;
    uint8_t* to = tile_to + first;
    const int32_t final_to = static_cast<int32_t>(final - tile.begin);
    typename W::template Var<bool> left;
    W::each([&](uint32_t lane) { left[lane] = false; });
    WARP_UNROLL
    for (uint32_t i = 0; i < kTileRows; ++i) {
      W::each([&](uint32_t lane) {
        uint32_t& entry = of[i][lane];
        const int32_t from = static_cast<int32_t>(entry);
        if (from < final_to) entry = kValue | tile_to[from];
        left[lane] = left[lane] || is_before(entry);
      });
    }
    WARP_UNROLL
    for (uint32_t i = 0; i < kTileRows; ++i) {
      W::each([&](uint32_t lane) {
        uint32_t& entry = of[i][lane];
        if (!is_value(entry)) return;
        to[i * kRowBytes + lane] = static_cast<uint8_t>(entry);
        entry = kWritten;
      });
    }
    return W::any(left);
  }
};

}  // namespace zstd_gpu
