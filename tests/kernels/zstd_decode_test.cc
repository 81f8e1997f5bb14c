// The decoder of src/kernels/zstd_*.cuh on the host, for tests/python/test_kernels_zstd.py.
//
//   usage: zstd_decode_test CASES RESULTS
//
// A case is five uint32 (alignment of both sides, encoded size, decoded size, blocks of a warp,
// warps of a chunk) and the encoded bytes. Its result is a uint32, the chunk's status, and without
// an error the decoded bytes. All memory is of the exact size, so that a sanitizer sees what is
// read or written outside.

#include <cstdio>

#include "zstd_headers.cuh"
#include "zstd_on_host.h"

namespace {

using namespace zstd_gpu;

uint32_t decode(const uint8_t* from, uint32_t from_bytes, uint8_t* to, uint32_t to_bytes,
                uint32_t slots, uint32_t warps) {
  std::vector<Block> blocks;
  Block last = {};
  const uint32_t error = read_chunk(from, from_bytes, to_bytes, last,
                                    [&](const Block& block) { blocks.push_back(block); });
  return error ? error : decode_blocks(blocks, from, from_bytes, to, to_bytes, slots, warps);
}

}  // namespace

int main(int, char** arguments) {
  FILE* cases = std::fopen(arguments[1], "rb");
  FILE* results = std::fopen(arguments[2], "wb");
  if (!cases || !results) return 1;
  uint32_t header[5];
  while (std::fread(header, sizeof header, 1, cases) == 1) {
    const auto [alignment, from_bytes, to_bytes, slots, warps] = header;
    const Exact from(from_bytes, alignment), to(to_bytes, (alignment * 7 + 3) % 16);
    if (std::fread(from.data, 1, from_bytes, cases) != from_bytes) return 1;
    Host::backwards = !Host::backwards;
    const uint32_t status = decode(from.data, from_bytes, to.data, to_bytes, slots, warps);
    std::fwrite(&status, sizeof status, 1, results);
    if (!status) std::fwrite(to.data, 1, to_bytes, results);
  }
  return std::fclose(results);
}
