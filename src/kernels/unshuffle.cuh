#pragma once

// Undoes the byte and bit shuffles of Blosc, block by block, and numcodecs' shuffle (one block of
// bytes).
//
//   byte shuffle:  to[e * size + j] = from[j * elements + e]
//   bit shuffle:   bit k of to[e * size + j] = bit e % 8 of from[(8 * j + k) * elements / 8 + e /
//   8]
//
// Bytes after the last whole element of a block are copied. So is the whole of a block whose number
// of elements is no multiple of 8 when bits are shuffled (c-blosc/blosc/shuffle.c, format version
// 2).
//
// A thread makes 8 or 16 neighbouring bytes of the output from the planes of its element size, and
// with bits all bytes of 8 neighbouring elements: reads and writes of a warp are contiguous,
// nothing is shared. That covers sizes of 1, 2, 4, 8 and 16 bytes at aligned blocks; the rest is
// made byte by byte.

#include <cstdint>

#ifdef __CUDACC__
#define SHUFFLED_INLINE __device__ __forceinline__
#else
#define SHUFFLED_INLINE inline
#endif

namespace shuffled {

constexpr uint32_t TILE_BYTES = 16384;  // of a block's output, for one thread block

enum Kind : uint32_t { kBytes = 1, kBits = 2 };

// A shuffled chunk. Mirrored by the Rust host code, which counts the tiles: for each block, its
// bytes divided by TILE_BYTES and rounded up.
struct Shuffled {
  uint64_t from;           // address of the shuffled bytes, any alignment
  uint64_t to;             // address of the output, any alignment; apart from `from`
  uint64_t bytes;          // of the chunk
  uint64_t first_tile;     // number of the chunk's first tile in the launch
  uint32_t block_bytes;    // at least 1; the last block is what is left
  uint32_t element_bytes;  // at least 1
  uint32_t kind;           // a Kind
  uint32_t reserved;
};

struct Block {
  const uint8_t* from;
  uint8_t* to;
  uint32_t bytes;
  uint32_t elements;
  uint32_t element_bytes;
  uint32_t kind;
};

template <uint32_t BYTES>
struct Unsigned;
template <>
struct Unsigned<1> {
  using Type = uint8_t;
};
template <>
struct Unsigned<2> {
  using Type = uint16_t;
};
template <>
struct Unsigned<4> {
  using Type = uint32_t;
};
template <>
struct Unsigned<8> {
  using Type = uint64_t;
};

// What a thread stores at once: the parts of a few elements from each plane of an element of SIZE
// bytes.
template <uint32_t SIZE>
struct Piece {
  static constexpr uint32_t BYTES = SIZE == 1 ? 8 : 16;
  static constexpr uint32_t ELEMENTS = BYTES / SIZE;  // and bytes of each plane
  using Part = typename Unsigned<ELEMENTS>::Type;
  struct alignas(BYTES) Words {
    uint32_t words[BYTES / 4];
  };

  static SHUFFLED_INLINE Part load(const uint8_t* plane, bool aligned) {
    Part part = 0;
    if (aligned) {
      part = *reinterpret_cast<const Part*>(plane);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < ELEMENTS; ++i) part |= static_cast<Part>(plane[i]) << 8 * i;
    }
    return part;
  }

  static SHUFFLED_INLINE void store(uint8_t* to, const Part* parts) {
    Words words = {};
#pragma unroll
    for (uint32_t i = 0; i < BYTES; ++i) {
      const uint32_t byte = parts[i % SIZE] >> 8 * (i / SIZE) & 0xff;
      words.words[i / 4] |= byte << 8 * (i % 4);
    }
    *reinterpret_cast<Words*>(to) = words;
  }
};

// Transposes 8 rows of 8 bits: bit i of byte k becomes bit k of byte i.
SHUFFLED_INLINE uint64_t transpose_bits(uint64_t rows) {
  uint64_t swapped = (rows ^ rows >> 7) & 0x00aa00aa00aa00aa;
  rows ^= swapped ^ swapped << 7;
  swapped = (rows ^ rows >> 14) & 0x0000cccc0000cccc;
  rows ^= swapped ^ swapped << 14;
  swapped = (rows ^ rows >> 28) & 0x00000000f0f0f0f0;
  return rows ^ swapped ^ swapped << 28;
}

// Byte `index` of the output, straight from the formulas.
SHUFFLED_INLINE uint8_t output_byte(const Block& block, uint32_t index) {
  if (index >= block.elements * block.element_bytes) return block.from[index];
  const uint32_t element = index / block.element_bytes;
  const uint32_t byte = index - element * block.element_bytes;
  if (block.kind == kBytes) return block.from[uint64_t{byte} * block.elements + element];
  const uint32_t row_bytes = block.elements / 8;
  const uint8_t* row = block.from + uint64_t{byte} * block.elements + element / 8;
  uint32_t value = 0;
#pragma unroll
  for (uint32_t bit = 0; bit < 8; ++bit, row += row_bytes) {
    value |= (*row >> element % 8 & 1u) << bit;
  }
  return static_cast<uint8_t>(value);
}

// Makes the whole pieces of [begin, end) of shuffled bytes; returns how far it came.
template <uint32_t SIZE>
SHUFFLED_INLINE uint32_t bytes_to_elements(const Block& block, uint32_t begin, uint32_t end,
                                           uint32_t thread, uint32_t threads) {
  using Piece = Piece<SIZE>;
  const uint8_t* __restrict__ from = block.from;
  uint8_t* __restrict__ to = block.to;
  const uint32_t pieces = (end - begin) / Piece::BYTES;
  const bool aligned = (reinterpret_cast<uint64_t>(from) | block.elements) % Piece::ELEMENTS == 0;
#pragma unroll 4
  for (uint32_t piece = thread; piece < pieces; piece += threads) {
    const uint32_t at = begin + piece * Piece::BYTES;
    typename Piece::Part parts[SIZE];
#pragma unroll
    for (uint32_t j = 0; j < SIZE; ++j) {
      parts[j] = Piece::load(from + uint64_t{j} * block.elements + at / SIZE, aligned);
    }
    Piece::store(to + at, parts);
  }
  return begin + pieces * Piece::BYTES;
}

// The same for shuffled bits, in groups of 8 elements.
template <uint32_t SIZE>
SHUFFLED_INLINE uint32_t bits_to_elements(const Block& block, uint32_t begin, uint32_t end,
                                          uint32_t thread, uint32_t threads) {
  using Piece = Piece<SIZE>;
  const uint8_t* __restrict__ from = block.from;
  uint8_t* __restrict__ to = block.to;
  const uint32_t groups = (end - begin) / (8 * SIZE);
  const uint32_t row_bytes = block.elements / 8;
  for (uint32_t group = thread; group < groups; group += threads) {
    const uint32_t at = begin + group * 8 * SIZE;
    uint64_t planes[SIZE];
#pragma unroll
    for (uint32_t j = 0; j < SIZE; ++j) {
      const uint8_t* row = from + uint64_t{j} * block.elements + at / (8 * SIZE);
      uint64_t rows = 0;
#pragma unroll
      for (uint32_t bit = 0; bit < 8; ++bit) {
        rows |= uint64_t{row[uint64_t{bit} * row_bytes]} << 8 * bit;
      }
      planes[j] = transpose_bits(rows);
    }
#pragma unroll
    for (uint32_t first = 0; first < 8; first += Piece::ELEMENTS) {
      typename Piece::Part parts[SIZE];
#pragma unroll
      for (uint32_t j = 0; j < SIZE; ++j) {
        parts[j] = static_cast<typename Piece::Part>(planes[j] >> 8 * first);
      }
      Piece::store(to + at + first * SIZE, parts);
    }
  }
  return begin + groups * 8 * SIZE;
}

// One thread's part of tile `tile`, counted from the chunk's first, that `threads` threads make.
SHUFFLED_INLINE void unshuffle_tile(const Shuffled& chunk, uint64_t tile, uint32_t thread,
                                    uint32_t threads) {
  const uint32_t tiles_per_block = (chunk.block_bytes - 1) / TILE_BYTES + 1;
  const uint64_t index = tile / tiles_per_block;
  const uint64_t start = index * chunk.block_bytes;
  const uint64_t rest = chunk.bytes - start;
  Block block;
  block.from = reinterpret_cast<const uint8_t*>(chunk.from) + start;
  block.to = reinterpret_cast<uint8_t*>(chunk.to) + start;
  block.bytes = rest < chunk.block_bytes ? static_cast<uint32_t>(rest) : chunk.block_bytes;
  block.element_bytes = chunk.element_bytes;
  block.elements = block.bytes / block.element_bytes;
  block.kind = chunk.kind;
  if (block.kind == kBits &&
      block.elements % 8 != 0) {  // copied: elements of one byte in one plane
    block.kind = kBytes;
    block.element_bytes = 1;
    block.elements = block.bytes;
  }

  const uint32_t begin = static_cast<uint32_t>(tile - index * tiles_per_block) * TILE_BYTES;
  const uint32_t end = block.bytes - begin < TILE_BYTES ? block.bytes : begin + TILE_BYTES;
  const uint32_t shuffled = block.elements * block.element_bytes;
  uint32_t at = begin;
  if (begin < shuffled && reinterpret_cast<uint64_t>(block.to) % 16 == 0) {
    const uint32_t stop = end < shuffled ? end : shuffled;
    switch (block.element_bytes | block.kind << 8) {
      case 1 | kBytes << 8:
        at = bytes_to_elements<1>(block, begin, stop, thread, threads);
        break;
      case 2 | kBytes << 8:
        at = bytes_to_elements<2>(block, begin, stop, thread, threads);
        break;
      case 4 | kBytes << 8:
        at = bytes_to_elements<4>(block, begin, stop, thread, threads);
        break;
      case 8 | kBytes << 8:
        at = bytes_to_elements<8>(block, begin, stop, thread, threads);
        break;
      case 16 | kBytes << 8:
        at = bytes_to_elements<16>(block, begin, stop, thread, threads);
        break;
      case 1 | kBits << 8:
        at = bits_to_elements<1>(block, begin, stop, thread, threads);
        break;
      case 2 | kBits << 8:
        at = bits_to_elements<2>(block, begin, stop, thread, threads);
        break;
      case 4 | kBits << 8:
        at = bits_to_elements<4>(block, begin, stop, thread, threads);
        break;
      case 8 | kBits << 8:
        at = bits_to_elements<8>(block, begin, stop, thread, threads);
        break;
      case 16 | kBits << 8:
        at = bits_to_elements<16>(block, begin, stop, thread, threads);
        break;
    }
  }
  for (uint32_t i = at + thread; i < end; i += threads) block.to[i] = output_byte(block, i);
}

}  // namespace shuffled
