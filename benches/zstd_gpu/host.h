#pragma once
// What the host does for the benchmark: it reads a chunk's headers.

#include <cstdint>
#include <vector>

#include "../../src/kernels/zstd_block.cuh"

namespace zstd_gpu {

/// The blocks of a chunk, without places in scratch memory; returns its status.
uint32_t blocks_of(const uint8_t* from, uint32_t bytes, uint32_t to_bytes,
                   std::vector<Block>& blocks);

}  // namespace zstd_gpu
