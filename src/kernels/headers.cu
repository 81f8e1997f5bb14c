// Copies the headers of an encoded chunk to the host: headers.cuh.

#include "headers.cuh"

/// One thread block of any number of warps.
extern "C" __global__ void __launch_bounds__(512) copy_headers(headers::Chunk chunk) {
  headers::copy_headers<warp::Device>(chunk, threadIdx.x / warp::kLanes, blockDim.x / warp::kLanes);
}
