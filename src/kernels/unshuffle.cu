// Undoes the shuffles of Blosc and numcodecs.
//
// A shuffled block holds the first bytes of all its elements, then the second ones, and so on; a
// bit-shuffled one the lowest bits of the first bytes of all its elements, then the next bits, and
// so on. Bytes behind the last whole element are as they were, and so is a whole block whose bits
// cannot be shuffled because its elements are not a multiple of 8.
//
//   for each tile of a block (block-parallel):       TILE elements
//     for each few elements (thread-parallel):       4 of them, 8 for bits
//       read a few bytes of each plane, transpose them in registers, write whole elements
//
// Neighbouring threads read neighbouring bytes of every plane and write neighbouring elements.

#include <cstdint>

#include "unshuffle.cuh"

namespace unshuffle_kernels {

/// Bytes 0..3 of four words become the words of four bytes each.
__device__ void transpose4(uint32_t (&w)[4]) {
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410);
  w[3] = __byte_perm(c, d, 0x7632);
}

/// Four elements of 4 * kWords bytes each (2 bytes for kWords == 0): needs planes and elements
/// aligned to words.
template <int kWords>
__device__ void four_wide(const uint8_t* planes, uint64_t plane_bytes, uint8_t* to) {
  uint32_t out[4][kWords];
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    uint32_t w[4];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      w[byte] = *reinterpret_cast<const uint32_t*>(planes + (word * 4 + byte) * plane_bytes);
    }
    transpose4(w);
#pragma unroll
    for (int element = 0; element < 4; ++element) out[element][word] = w[element];
  }
  uint4* wide = reinterpret_cast<uint4*>(to);
  const uint32_t* flat = &out[0][0];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    wide[i] = make_uint4(flat[4 * i], flat[4 * i + 1], flat[4 * i + 2], flat[4 * i + 3]);
  }
}

__device__ void four_narrow(const uint8_t* planes, uint64_t plane_bytes, uint8_t* to) {
  const uint32_t low = *reinterpret_cast<const uint32_t*>(planes);
  const uint32_t high = *reinterpret_cast<const uint32_t*>(planes + plane_bytes);
  *reinterpret_cast<uint2*>(to) =
      make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}

/// Bytes of one block: elements `begin`..`end` of it, by all threads.
__device__ void bytes_of(const uint8_t* from, uint8_t* to, uint32_t count, uint32_t size,
                         uint32_t begin, uint32_t end) {
  const uint64_t alignment = reinterpret_cast<uint64_t>(from) | count;
  const bool wide = (alignment & 3) == 0 && (reinterpret_cast<uint64_t>(to) & 15) == 0 &&
                    (size == 2 || size == 4 || size == 8 || size == 16);
  if (!wide) {
    // One byte after another; neighbours write neighbours.
    for (uint64_t i = uint64_t(begin) * size + threadIdx.x; i < uint64_t(end) * size;
         i += blockDim.x) {
      const uint32_t element = static_cast<uint32_t>(i / size),
                     byte = static_cast<uint32_t>(i % size);
      to[i] = from[uint64_t(byte) * count + element];
    }
    return;
  }
  for (uint32_t element = begin + 4 * threadIdx.x; element < end; element += 4 * blockDim.x) {
    const uint8_t* planes = from + element;
    uint8_t* elements = to + uint64_t(element) * size;
    switch (size) {
      case 2:
        four_narrow(planes, count, elements);
        break;
      case 4:
        four_wide<1>(planes, count, elements);
        break;
      case 8:
        four_wide<2>(planes, count, elements);
        break;
      default:
        four_wide<4>(planes, count, elements);
    }
  }
}

/// Rows of 8 bits become columns.
__device__ uint64_t transpose_bits(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
  return x ^ t ^ (t << 28);
}

/// Bits of one block: elements `begin`..`end` of it, multiples of 8, by all threads.
__device__ void bits_of(const uint8_t* from, uint8_t* to, uint32_t count, uint32_t size,
                        uint32_t begin, uint32_t end) {
  const uint64_t row_bytes = count / 8;
  const bool words = size == 4 && (reinterpret_cast<uint64_t>(to) & 15) == 0;
  for (uint32_t element = begin + 8 * threadIdx.x; element < end; element += 8 * blockDim.x) {
    const uint8_t* rows = from + element / 8;
    uint8_t* elements = to + uint64_t(element) * size;
    uint32_t planes[8] = {};  // the element's word, byte by byte
    for (uint32_t byte = 0; byte < size; ++byte) {
      uint64_t square = 0;
#pragma unroll
      for (int bit = 0; bit < 8; ++bit) {
        square |= uint64_t(rows[(uint64_t(byte) * 8 + bit) * row_bytes]) << (8 * bit);
      }
      square = transpose_bits(square);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t value = static_cast<uint32_t>(square >> (8 * i)) & 255;
        if (words) {
          planes[i] |= value << (8 * byte);
        } else {
          elements[uint64_t(i) * size + byte] = static_cast<uint8_t>(value);
        }
      }
    }
    if (words) {
      uint4* wide = reinterpret_cast<uint4*>(elements);
      wide[0] = make_uint4(planes[0], planes[1], planes[2], planes[3]);
      wide[1] = make_uint4(planes[4], planes[5], planes[6], planes[7]);
    }
  }
}

__device__ void copy(const uint8_t* from, uint8_t* to, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
}

}  // namespace unshuffle_kernels

extern "C" __global__ void __launch_bounds__(256)
    unshuffle(const Shuffled* chunks, uint32_t count) {
  using namespace unshuffle_kernels;
  __shared__ Shuffled chunk;
  if (threadIdx.x == 0) {
    uint32_t low = 0, high = count;  // chunks[low].first_tile <= tile < chunks[high].first_tile
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (chunks[middle].first_tile <= blockIdx.x) {
        low = middle;
      } else {
        high = middle;
      }
    }
    chunk = chunks[low];
  }
  __syncthreads();
  const uint32_t size = chunk.element_bytes;
  const uint32_t tiles_a_block = tiles_of_block(chunk.block_bytes, size);
  const uint32_t tile = blockIdx.x - chunk.first_tile;
  const uint64_t start = uint64_t(tile / tiles_a_block) * chunk.block_bytes;
  const uint64_t bytes = min(uint64_t(chunk.block_bytes), chunk.bytes - start);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(chunk.from + start);
  uint8_t* to = reinterpret_cast<uint8_t*>(chunk.to + start);
  const uint32_t elements = static_cast<uint32_t>(bytes / size);
  const uint32_t begin = (tile % tiles_a_block) * kUnshuffleTile;
  const uint32_t end = min(elements, begin + kUnshuffleTile);
  const bool last = end == elements && begin <= elements;
  if (chunk.kind == 2 && elements % 8 != 0) {
    if (begin < elements || begin == 0)
      copy(from, to, uint64_t(begin) * size, last ? bytes : uint64_t(end) * size);
    return;
  }
  if (begin < end) {
    if (chunk.kind == 2) {
      bits_of(from, to, elements, size, begin, end);
    } else {
      bytes_of(from, to, elements, size, begin, end);
    }
  }
  if (last && (begin < elements || begin == 0)) copy(from, to, uint64_t(elements) * size, bytes);
}
