// Kernels over lz.cuh: each decodes `count` streams, one per warp, and leaves the first error of a
// stream in its status word, which several streams may share.
//
// Launch with LZ_THREADS threads a block and ceil(count / LZ_WARPS) blocks. A long stream is one
// warp's work from end to end; stored ones can be cut by the host, the others cannot.

#include "lz.cuh"

namespace lz {

constexpr uint32_t LZ_THREADS = 128;
constexpr uint32_t LZ_WARPS = LZ_THREADS / 32;
// At once on a multiprocessor: leaves each thread the registers to do without spills, on any
// architecture.
constexpr uint32_t LZ_BLOCKS = 8;

struct CudaWarp {
  static constexpr uint32_t LANES = 32;

  template <class T>
  struct PerLane {
    T value;
    __device__ T& operator[](uint32_t) { return value; }
  };

  template <class Step>
  static __device__ __forceinline__ void each(Step step) {
    step(threadIdx.x % LANES);
  }

  // How many lanes, from the first on, meet the condition.
  template <class Condition>
  static __device__ __forceinline__ uint32_t leading(Condition condition) {
    const uint32_t unmet = ~__ballot_sync(0xffffffff, condition(threadIdx.x % LANES));
    return unmet ? __ffs(static_cast<int>(unmet)) - 1 : LANES;
  }

  static __device__ __forceinline__ void sync() { __syncwarp(); }
};

__device__ __forceinline__ void report(const Stream& stream, uint32_t error) {
  if (error != kStreamOk && threadIdx.x % CudaWarp::LANES == 0) {
    atomicCAS(reinterpret_cast<uint32_t*>(stream.status), static_cast<uint32_t>(kStreamOk), error);
  }
}

template <class Format>
__device__ __forceinline__ void decode_all(const Stream* streams, uint32_t count) {
  __shared__ Scratch scratch[LZ_WARPS];
  const uint32_t warp = threadIdx.x / CudaWarp::LANES;
  const uint32_t index = blockIdx.x * LZ_WARPS + warp;
  if (index >= count) return;
  const Stream stream = streams[index];
  report(stream, decode<Format, CudaWarp>(stream, scratch[warp]));
}

}  // namespace lz

extern "C" __global__ void __launch_bounds__(lz::LZ_THREADS, lz::LZ_BLOCKS)
    decode_lz4(const Stream* streams, uint32_t count) {
  lz::decode_all<lz::Lz4>(streams, count);
}

extern "C" __global__ void __launch_bounds__(lz::LZ_THREADS, lz::LZ_BLOCKS)
    decode_blosclz(const Stream* streams, uint32_t count) {
  lz::decode_all<lz::BloscLz>(streams, count);
}

extern "C" __global__ void __launch_bounds__(lz::LZ_THREADS, lz::LZ_BLOCKS)
    decode_snappy(const Stream* streams, uint32_t count) {
  lz::decode_all<lz::Snappy>(streams, count);
}

extern "C" __global__ void __launch_bounds__(lz::LZ_THREADS, lz::LZ_BLOCKS)
    decode_stored(const Stream* streams, uint32_t count) {
  const uint32_t index = blockIdx.x * lz::LZ_WARPS + threadIdx.x / lz::CudaWarp::LANES;
  if (index >= count) return;
  const Stream stream = streams[index];
  lz::report(stream, lz::copy_stored<lz::CudaWarp>(stream));
}
