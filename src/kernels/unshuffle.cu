// Kernel over unshuffle.cuh: undoes Blosc's and numcodecs' shuffles of `count` chunks.
//
// Launch with one block per tile and UNSHUFFLE_THREADS threads; a block finds its chunk by
// bisection over `first_tile`.

#include "unshuffle.cuh"

namespace shuffled {

constexpr uint32_t UNSHUFFLE_THREADS = 256;

}  // namespace shuffled

extern "C" __global__ void __launch_bounds__(shuffled::UNSHUFFLE_THREADS)
    unshuffle(const shuffled::Shuffled* chunks, uint32_t count) {
  __shared__ shuffled::Shuffled chunk;
  const uint64_t tile = blockIdx.x;
  if (threadIdx.x == 0) {
    uint32_t low = 0, high = count;  // chunks[low].first_tile <= tile < chunks[high].first_tile
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (chunks[middle].first_tile <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    chunk = chunks[low];
  }
  __syncthreads();
  shuffled::unshuffle_tile(chunk, tile - chunk.first_tile, threadIdx.x,
                           shuffled::UNSHUFFLE_THREADS);
}
