// Undoes numcodecs' Delta, one block a chunk: delta.cuh says how.

#include "delta.cuh"

namespace delta {
constexpr uint32_t kThreads = 1024;
}

extern "C" __global__ void __launch_bounds__(delta::kThreads, 1)
    undo_delta(const Delta* chunks, uint32_t count) {
  const lanes::Block<delta::kThreads> block;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) delta::undo(block, chunks[i]);
}
