// Copies boxes of elements from decoded chunks into outputs, filling, swapping bytes and converting
// on the way.
//
//   for each region (block-parallel):            one box of one chunk, in granules of 1 to 16 bytes
//     for each granule g of the region:          thread-parallel, neighbours take neighbours
//       i_0 .. i_n = unravel(g, extents)
//       value = source ? source[sum i_d * from_stride_d] : fill
//       destination[sum i_d * to_stride_d] = convert(swap(value))
//
// Where elements are normalized by channel, the channel is that of the region's first element, plus
// i_d of one dimension.
//
// A block takes one tile: GRANULES_PER_TILE granules of one region, found by bisection over
// `first_tile`. Where elements are copied, a granule is the largest power of two up to 16 bytes
// that divides the row length, every stride and both addresses, and never smaller than an element;
// where they are converted, or lie apart in the source, it is an element. The host chooses it
// (src/assemble/device.rs), so every access is aligned. `Region` and the constants mirror that
// file, which checks its own layout.

#include <cstdint>

#include "convert.cuh"

namespace {

constexpr int MAX_DIMENSIONS = 6;
constexpr uint32_t GRANULES_PER_TILE = 2048;
// Elements that a thread converts at a time: their loads are in flight together.
constexpr int ELEMENTS_IN_FLIGHT = 4;

struct Region {
  uint64_t from;                            // address of the first element in the source, 0: fill
  uint64_t to;                              // address of the first element in the destination
  uint64_t fill;                            // the fill element, repeated; or number of a Conversion
  uint64_t first_tile;                      // number of the region's first tile in the launch
  uint64_t from_strides[MAX_DIMENSIONS];    // bytes
  uint64_t to_strides[MAX_DIMENSIONS - 1];  // bytes; the last dimension is contiguous
  uint32_t extents[MAX_DIMENSIONS];         // the last in granules
  uint32_t granules;                        // product of the extents
  uint8_t dimensions;
  uint8_t granule_bytes;      // in the source
  uint8_t swap_bytes;         // element size if bytes are to be swapped, else 0
  uint8_t converted_bytes;    // element size in the destination if elements are converted, else 0
  uint32_t channel;           // of the first element, where elements are normalized by channel
  uint8_t channel_dimension;  // along which channels follow, or more than there are
  uint8_t reserved[3];
};

__device__ uint32_t swap_word(uint32_t word, int element) {
  return __byte_perm(word, 0, element == 2 ? 0x2301 : 0x0123);
}

__device__ void swap(uint8_t&, int) {}

__device__ void swap(uint16_t& value, int) {
  value = static_cast<uint16_t>(value << 8 | value >> 8);
}

__device__ void swap(uint32_t& value, int element) { value = swap_word(value, element); }

__device__ void swap(uint2& value, int element) {
  uint32_t x = swap_word(value.x, element), y = swap_word(value.y, element);
  value = element == 8 ? make_uint2(y, x) : make_uint2(x, y);
}

__device__ void swap(uint4& value, int element) {
  uint2 low = make_uint2(value.x, value.y), high = make_uint2(value.z, value.w);
  swap(low, element);
  swap(high, element);
  value = make_uint4(low.x, low.y, high.x, high.y);
}

__device__ void splat(uint64_t fill, uint8_t& value) { value = static_cast<uint8_t>(fill); }
__device__ void splat(uint64_t fill, uint16_t& value) { value = static_cast<uint16_t>(fill); }
__device__ void splat(uint64_t fill, uint32_t& value) { value = static_cast<uint32_t>(fill); }

__device__ void splat(uint64_t fill, uint2& value) {
  value = make_uint2(static_cast<uint32_t>(fill), static_cast<uint32_t>(fill >> 32));
}

__device__ void splat(uint64_t fill, uint4& value) {
  uint2 half;
  splat(fill, half);
  value = make_uint4(half.x, half.y, half.x, half.y);
}

// Where a granule lies, in bytes from the start of its region.
struct Place {
  uint64_t from, to;
};

template <bool BY_CHANNEL = false>
__device__ Place place(const Region& region, uint32_t granule, uint32_t to_bytes,
                       uint32_t* channel = nullptr) {
  const int last = region.dimensions - 1;
  const auto count = [&](int d, uint32_t index) {
    if constexpr (BY_CHANNEL) {
      if (d == region.channel_dimension) *channel += index;
    }
  };
  if constexpr (BY_CHANNEL) *channel = region.channel;
  uint32_t rest = granule;
  Place at{0, 0};
  if (last > 0) {
    uint32_t row = rest / region.extents[last];
    rest -= row * region.extents[last];
    for (int d = last - 1; d >= 0; --d) {
      uint32_t outer = row / region.extents[d];
      uint32_t index = row - outer * region.extents[d];
      row = outer;
      at.from += index * region.from_strides[d];
      at.to += index * region.to_strides[d];
      count(d, index);
    }
  }
  count(last, rest);
  at.from += rest * region.from_strides[last];
  at.to += static_cast<uint64_t>(rest) * to_bytes;
  return at;
}

template <typename Granule>
__device__ void copy_tile(const Region& region, uint32_t begin, uint32_t end) {
  const char* from = reinterpret_cast<const char*>(region.from);
  char* to = reinterpret_cast<char*>(region.to);
  const int element = region.swap_bytes;
  Granule fill;
  splat(region.fill, fill);
#pragma unroll 4
  for (uint32_t granule = begin + threadIdx.x; granule < end; granule += blockDim.x) {
    const Place at = place(region, granule, sizeof(Granule));
    Granule value = fill;
    if (from) {
      value = *reinterpret_cast<const Granule*>(from + at.from);
      if (element) swap(value, element);
    }
    *reinterpret_cast<Granule*>(to + at.to) = value;
  }
}

template <int N, typename Element>
__device__ void read(uint64_t from, const Place (&places)[N], bool swaps, uint64_t (&bits)[N]) {
  Element elements[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    elements[i] = *reinterpret_cast<const Element*>(from + places[i].from);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (swaps) swap(elements[i], sizeof(Element));
    if constexpr (sizeof(Element) == 8) {
      bits[i] = static_cast<uint64_t>(elements[i].y) << 32 | elements[i].x;
    } else {
      bits[i] = elements[i];
    }
  }
}

template <int N, typename Element>
__device__ void write(uint64_t to, const Place (&places)[N], int count, const uint64_t (&bits)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) *reinterpret_cast<Element*>(to + places[i].to) = static_cast<Element>(bits[i]);
  }
}

template <bool BY_CHANNEL>
__device__ void convert_tile(const Region& region, const convert::Conversion& conversion,
                             const float* table, uint32_t begin, uint32_t end) {
  constexpr int N = ELEMENTS_IN_FLIGHT;
  uint64_t from = region.from;
  if constexpr (BY_CHANNEL) {
    if (!from) from = reinterpret_cast<uint64_t>(&conversion.fill);
  }
  for (uint32_t first = begin + threadIdx.x; first < end; first += N * blockDim.x) {
    Place places[N];
    uint32_t channels[N];
    int count = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t element = first + i * blockDim.x;
      if (element < end) count = i + 1;
      // Past the end the first one is read again, and not written.
      places[i] = place<BY_CHANNEL>(region, element < end ? element : first, region.converted_bytes,
                                    &channels[i]);
    }
    uint64_t bits[N];
    const bool swaps = region.swap_bytes;
    switch (region.granule_bytes) {
      case 1:
        read<N, uint8_t>(from, places, swaps, bits);
        break;
      case 2:
        read<N, uint16_t>(from, places, swaps, bits);
        break;
      case 4:
        read<N, uint32_t>(from, places, swaps, bits);
        break;
      default:
        read<N, uint2>(from, places, swaps, bits);
    }
    convert::elements<BY_CHANNEL>(conversion, table, channels, bits);
    switch (region.converted_bytes) {
      case 1:
        write<N, uint8_t>(region.to, places, count, bits);
        break;
      case 2:
        write<N, uint16_t>(region.to, places, count, bits);
        break;
      case 4:
        write<N, uint32_t>(region.to, places, count, bits);
        break;
      default:
        write<N, uint64_t>(region.to, places, count, bits);
    }
  }
}

}  // namespace

// Behind the regions are the conversions that they name.
extern "C" __global__ void __launch_bounds__(256) gather(const Region* regions, uint32_t count) {
  __shared__ Region region;
  const uint64_t tile = blockIdx.x;
  if (threadIdx.x == 0) {
    uint32_t low = 0, high = count;  // regions[low].first_tile <= tile < regions[high].first_tile
    while (high - low > 1) {
      uint32_t middle = low + (high - low) / 2;
      if (regions[middle].first_tile <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    region = regions[low];
  }
  __syncthreads();
  const uint32_t begin = static_cast<uint32_t>(tile - region.first_tile) * GRANULES_PER_TILE;
  const uint32_t end = min(region.granules, begin + GRANULES_PER_TILE);
  if (region.converted_bytes) {
    const auto* conversions = reinterpret_cast<const convert::Conversion*>(regions + count);
    const convert::Conversion& conversion = conversions[region.fill];
    if (conversion.channels) {
      return convert_tile<true>(region, conversion, conversion.table, begin, end);
    }
    return convert_tile<false>(region, conversion, conversion.table, begin, end);
  }
  switch (region.granule_bytes) {
    case 16:
      return copy_tile<uint4>(region, begin, end);
    case 8:
      return copy_tile<uint2>(region, begin, end);
    case 4:
      return copy_tile<uint32_t>(region, begin, end);
    case 2:
      return copy_tile<uint16_t>(region, begin, end);
    default:
      return copy_tile<uint8_t>(region, begin, end);
  }
}
