// The gather kernel, compiled for the host as it stands: what it takes from CUDA is made up here,
// and the threads of a block run one after the other. That is the same for this kernel: its only
// barrier is behind what thread 0 does alone.

#include <algorithm>
#include <cstdint>

#define __device__
#define __global__
#define __launch_bounds__(threads)

namespace {

struct Dimension {
  uint32_t x;
};
thread_local Dimension blockIdx, threadIdx, blockDim{256};

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

// Bytes of a, by number, the lowest digit of the selector for the lowest byte.
uint32_t __byte_perm(uint32_t a, uint32_t, uint32_t selector) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= (a >> 8 * (selector >> 4 * i & 3) & 0xff) << 8 * i;
  return result;
}

void __syncthreads() {}
using std::min;

}  // namespace

#define __shared__ static thread_local
#include "gather.cu"

extern "C" void gather_on_host(const Region* regions, uint32_t count, uint64_t tiles) {
  for (blockIdx.x = 0; blockIdx.x < tiles; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) gather(regions, count);
  }
}
