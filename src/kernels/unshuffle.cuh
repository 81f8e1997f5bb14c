#pragma once
#include <cstdint>

// Shuffled blocks of one chunk, one behind the other. Mirrored by the Rust host code.
struct Shuffled {
  uint64_t from;           // address of the shuffled bytes, any alignment
  uint64_t to;             // address of the bytes in order, any alignment
  uint64_t bytes;          // of all blocks
  uint32_t block_bytes;    // of a block; the last one may be smaller
  uint32_t element_bytes;  // of an element
  uint32_t kind;           // 1: bytes were shuffled, 2: bits
  uint32_t first_tile;     // number of the chunk's first tile in the launch
};

// Elements that one block of threads puts in order; a multiple of 8.
constexpr uint32_t kUnshuffleTile = 4096;

// How many tiles a block has, at least one.
__host__ __device__ inline uint32_t tiles_of_block(uint32_t block_bytes, uint32_t element_bytes) {
  const uint32_t tiles = (block_bytes / element_bytes + kUnshuffleTile - 1) / kUnshuffleTile;
  return tiles > 0 ? tiles : 1;
}
