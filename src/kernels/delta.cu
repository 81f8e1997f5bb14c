// Adds up the elements of a chunk, each to all before it, wrapping around; in place.
//
//   one block of threads for each chunk
//     for each 1024 elements:  sums within warps by shuffles, sums of warps in shared memory, the
//     sum so far on top

#include <cstdint>

// Elements of one chunk. Mirrored by the Rust host code.
struct Delta {
  uint64_t address;  // aligned to an element
  uint64_t elements;
  uint32_t element_bytes;  // 1, 2, 4 or 8
  uint32_t reserved;
};

namespace {

constexpr uint32_t kDeltaThreads = 1024;

template <typename Element>
__device__ void add_up(Element* elements, uint64_t count, unsigned long long* warps) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned long long before = 0;
  for (uint64_t base = 0; base < count; base += kDeltaThreads) {
    const uint64_t place = base + threadIdx.x;
    unsigned long long sum = place < count ? elements[place] : 0;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const unsigned long long other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      unsigned long long all = warps[lane];
      for (uint32_t step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(0xFFFFFFFFu, all, step);
        if (lane >= step) all += other;
      }
      warps[lane] = all;
    }
    __syncthreads();
    sum += before + (warp > 0 ? warps[warp - 1] : 0);
    before += warps[31];
    if (place < count) elements[place] = static_cast<Element>(sum);
    __syncthreads();
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024) undo_delta(const Delta* chunks, uint32_t) {
  __shared__ unsigned long long warps[32];
  const Delta chunk = chunks[blockIdx.x];
  switch (chunk.element_bytes) {
    case 1:
      return add_up(reinterpret_cast<uint8_t*>(chunk.address), chunk.elements, warps);
    case 2:
      return add_up(reinterpret_cast<uint16_t*>(chunk.address), chunk.elements, warps);
    case 4:
      return add_up(reinterpret_cast<uint32_t*>(chunk.address), chunk.elements, warps);
    default:
      return add_up(reinterpret_cast<uint64_t*>(chunk.address), chunk.elements, warps);
  }
}
