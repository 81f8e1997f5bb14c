// Execute with one thread block a chunk, whose warps take groups of sequences in order: what
// zstd_tiles.cu is measured beside, and what the tests compare it with.
#pragma once

#include "../../src/kernels/zstd_execute.cuh"

namespace zstd_gpu {

/// What the warps of a chunk know of each other.
struct SharedProgress {
  uint32_t* begins;  // shared memory: where each warp's piece begins
  uint32_t warp, warps;

  /// All that this warp wrote before is seen by those that read `position`.
  __device__ __forceinline__ void publish(uint32_t position) const {
    __syncwarp();
    fence();
    if (threadIdx.x % warp::kLanes == 0)
      *reinterpret_cast<volatile uint32_t*>(begins + warp) = position;
  }
  __device__ __forceinline__ void wait(uint32_t position) const {
    const uint32_t lane = threadIdx.x % warp::kLanes;
#ifdef ZSTD_GPU_MOST_POLLS
    uint32_t polls = 0;
#endif
    for (;;) {
      const uint32_t begin =
          lane < warps ? *reinterpret_cast<volatile uint32_t*>(begins + lane) : ~0u;
      if (warp::Device::smallest({begin}) >= position) break;
#ifdef ZSTD_GPU_MOST_POLLS
      if (++polls > ZSTD_GPU_MOST_POLLS) __trap();
#endif
      __nanosleep(20);
    }
    fence();
    __syncwarp();
  }

 private:
  /// Orders what this thread did before and does after it, for the threads of its block.
  __device__ __forceinline__ static void fence() {
#if __CUDA_ARCH__ >= 700
    asm volatile("fence.acq_rel.cta;" ::: "memory");
#else
    __threadfence_block();
#endif
  }
};

/// Decodes chunk `blockIdx.x`. Dynamic shared memory: an ExecuteShared a warp.
__device__ __forceinline__ void execute_chunk(const Launch& launch) {
  extern __shared__ warp::Wide zstd_shared[];
  __shared__ uint32_t begins[warp::kLanes];
  const Chunk chunk = launch.chunks[blockIdx.x];
  if (*reinterpret_cast<const uint32_t*>(chunk.status)) return;
  const uint32_t warp = threadIdx.x / warp::kLanes, warps = blockDim.x / warp::kLanes;
  if (threadIdx.x < warp::kLanes) begins[threadIdx.x] = 0;
  __syncthreads();
  const SharedProgress progress = {begins, warp, warps};
  ExecuteShared& shared = reinterpret_cast<ExecuteShared*>(zstd_shared)[warp];
  uint32_t turn = 0;
  for (uint32_t i = 0; i < chunk.blocks; ++i) {
    execute_block<warp::Device>(launch, chunk, chunk.first_block + i, shared, progress, warp, warps,
                                turn);
  }
  progress.publish(~0u);
}

}  // namespace zstd_gpu

/// One thread block of up to 16 warps a chunk, for chunks that have a multiprocessor each.
extern "C" __global__ void __launch_bounds__(512, 1) zstd_execute_few(zstd_gpu::Launch launch) {
  zstd_gpu::execute_chunk(launch);
}

/// One thread block of up to 8 warps a chunk, three of which fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(256, 3) zstd_execute_many(zstd_gpu::Launch launch) {
  zstd_gpu::execute_chunk(launch);
}
