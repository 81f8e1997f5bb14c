#pragma once
// The stages of src/kernels/zstd_decode.cu on the host, for the tests.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "../../src/kernels/zstd_fse.cuh"
#include "../../src/kernels/zstd_huffman.cuh"
#include "../../src/kernels/zstd_tiles.cuh"
#include "host_warp.h"

namespace zstd_gpu {

using warp::Host;
using warp::Wide;

/// Writes the decoded bytes. A barrier of a thread block is the end of a loop over its warps. What
/// is known of the tiles before is less than all at first, as on a GPU.
inline void execute(const Launch& launch, uint32_t warps) {
  const Chunk& chunk = launch.chunks[0];
  const Tiling tiling = Tiling::of(chunk, warps);
  for (uint32_t number = 0; number < tiling.count; ++number) {
    // Of the exact size, so that a sanitizer sees a link that leads out of the tile.
    const uint32_t size = Tile::of(chunk, tiling, number, nullptr).end - tiling.begin(number);
    const std::unique_ptr<uint32_t[]> entries(new uint32_t[size]);
    std::memset(entries.get(), 0xA5, size * sizeof(uint32_t));
    const Tile tile = Tile::of(chunk, tiling, number, entries.get());
    for (uint32_t warp = 0; warp < warps; ++warp) {
      const std::unique_ptr<TileShared> shared(new TileShared);
      std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(TileShared));
      expand_piece<Host>(launch, chunk, tile, *shared, warp);
    }
    std::vector<Piece<Host>> pieces(warps);
    for (uint32_t warp = 0; warp < warps; ++warp) pieces[warp].read(tile, warp);
    for (uint32_t rounds = 0;; ++rounds) {
      // 8^7 is more than the links of a tile.
      if (rounds > 7) std::abort();
      bool further = false;
      for (Piece<Host>& piece : pieces) further |= piece.follow(tile);
      if (!further) break;
      for (Piece<Host>& piece : pieces) piece.leave(tile);
    }
    bool left = true;
    for (const uint32_t known : {number / 2, number > 0 ? number - 1 : 0, number}) {
      left = false;
      for (Piece<Host>& piece : pieces) left |= piece.write(chunk, tile, tiling.begin(known));
    }
    if (left) std::abort();
  }
}

/// A copy on the heap that begins `offset` bytes after a multiple of 16 and ends with its last
/// byte.
struct Exact {
  Exact(size_t bytes, size_t offset)
      : memory(new uint8_t[offset + bytes]), data(memory.get() + offset) {}
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* data;
};

template <class T>
std::unique_ptr<T[]> filled(size_t count) {
  std::unique_ptr<T[]> memory(new T[count]);
  std::memset(static_cast<void*>(memory.get()), 0xA5, count * sizeof(T));
  return memory;
}

/// Decodes a chunk whose blocks were read; places them in scratch memory. Returns its status.
inline uint32_t decode_blocks(std::vector<Block>& blocks, const uint8_t* from, uint32_t from_bytes,
                              uint8_t* to, uint32_t to_bytes, uint32_t slots, uint32_t warps) {
  ScratchSize size = {};
  for (Block& block : blocks) {
    block.chunk = 0;
    block.literals_to = size.literals;
    block.records_to = size.records;
    block.groups_to = size.groups;
    const ScratchSize own = scratch_size(block);
    size = {size.literals + own.literals, size.records + own.records, size.groups + own.groups};
  }
  const uint32_t count = static_cast<uint32_t>(blocks.size());
  const Chunk chunk = {reinterpret_cast<uintptr_t>(from),
                       reinterpret_cast<uintptr_t>(to),
                       0,
                       from_bytes,
                       to_bytes,
                       0,
                       count};
  std::vector<Summary> summaries(count);
  const auto literals = filled<Wide>(size.literals), records = filled<Wide>(size.records),
             groups = filled<Wide>(size.groups);
  const Launch launch = {
      &chunk, blocks.data(), summaries.data(), literals.get(), records.get(), groups.get(),
      1,      count};
  for (uint32_t first = 0; first < count; first += slots) {
    const uint32_t here = std::min(slots, count - first);
    const auto fse = filled<FseSlot>(slots);
    walk_sequences<Host>(FseWork{launch, fse.get(), first, here, slots});
    const auto huffman = filled<Wide>(slots * kHuffmanSlotBytes / sizeof(Wide));
    decode_literals<Host>(
        HuffmanWork{launch, reinterpret_cast<uint8_t*>(huffman.get()), first, here, slots});
  }
  for (uint32_t block = 0; block < count; ++block) resolve_block<Host>(launch, block);
  if (const uint32_t error = chain_blocks(launch, chunk)) return error;
  execute(launch, warps);
  return kStreamOk;
}

}  // namespace zstd_gpu
