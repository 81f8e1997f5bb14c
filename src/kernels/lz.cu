// The decoders of lz.cuh as kernels: one warp for each stream.

#include <cstdint>

#include "lz.cuh"

namespace {

using Decoder = StreamError (*)(const Stream&);

template <Decoder kDecode>
__device__ void decode_one(const Stream* streams, uint32_t count) {
  const uint32_t number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (number >= count) return;
  const Stream stream = streams[number];
  const StreamError error = kDecode(stream);
  if (error && threadIdx.x % 32 == 0)
    atomicCAS(reinterpret_cast<uint32_t*>(stream.status), 0u, uint32_t(error));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    decode_stored(const Stream* streams, uint32_t count) {
  decode_one<lz::decode_stored>(streams, count);
}

extern "C" __global__ void __launch_bounds__(128)
    decode_lz4(const Stream* streams, uint32_t count) {
  decode_one<lz::decode_lz4>(streams, count);
}

extern "C" __global__ void __launch_bounds__(128)
    decode_blosclz(const Stream* streams, uint32_t count) {
  decode_one<lz::decode_blosclz>(streams, count);
}

extern "C" __global__ void __launch_bounds__(128)
    decode_snappy(const Stream* streams, uint32_t count) {
  decode_one<lz::decode_snappy>(streams, count);
}
