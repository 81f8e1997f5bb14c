// DEFLATE as a kernel: one warp for each stream, its tables in shared memory.

#include <cstdint>

#include "inflate.cuh"

extern "C" __global__ void __launch_bounds__(128) inflate(const Stream* streams, uint32_t count) {
  __shared__ alignas(8) deflate::Tables tables[4];
  const uint32_t number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (number >= count) return;
  const Stream stream = streams[number];
  const StreamError error = deflate::decode(stream, tables[threadIdx.x / 32]);
  if (error && threadIdx.x % 32 == 0)
    atomicCAS(reinterpret_cast<uint32_t*>(stream.status), 0u, uint32_t(error));
}
