// Decodes raw DEFLATE streams, one warp a stream and one warp a block: inflate.cuh says how.

#include "inflate.cuh"

extern "C" __global__ void __launch_bounds__(32) inflate(const Stream* streams, uint32_t count) {
  __shared__ deflate::Shared shared;
  const lanes::Warp warp;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Stream stream = streams[i];
    const uint32_t error = deflate::Decoder<lanes::Warp>(warp, shared, stream).run();
    if (warp.lane() == 0) lanes::report(stream.status, error);
    warp.sync();
  }
}
