#include "host.h"

#include "../../tests/kernels/zstd_headers.cuh"

namespace zstd_gpu {

uint32_t blocks_of(const uint8_t* from, uint32_t bytes, uint32_t to_bytes,
                   std::vector<Block>& blocks) {
  Block last = {};
  return read_chunk(from, bytes, to_bytes, last,
                    [&](const Block& block) { blocks.push_back(block); });
}

}  // namespace zstd_gpu
