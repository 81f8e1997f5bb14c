// The algorithm of src/kernels/zstd_check.cuh on the host, one lane for all, for
// tests/zstd_check.rs.
//
// Reads cases from standard input until it ends: four uint32 (size of the frame, size that it has
// to decode to, number of blocks, alignment of the frame), the frame, its block descriptors.
// Answers each with a uint32, its StreamError, plus kHuffman if that came from the literals.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../src/kernels/zstd_check.cuh"
#include "zstd_on_host.h"

namespace {

constexpr uint32_t kHuffman = 0x100;

zstd::Summary check_block(zstd::Block block, const uint8_t* frame) {
  zstd::Tables tables;
  std::memset(&tables, 0xA5, sizeof tables);
  zstd::Summary summary;
  if (block.stream_bytes[0]) zstd::fill_codes(tables.codes, block.code_ends, 0, 1);
  for (int table = 0; table < 3; ++table) zstd::fill_states(tables, block, table);
  zstd::check_sequences(tables, block, frame, zstd::kLiteralLengths, zstd::kMatchLengths, summary);
  for (int stream = 0; stream < 4; ++stream) {
    const uint32_t error = zstd::check_stream(tables, block, frame, stream);
    if (error) summary.error = kHuffman + error;
  }
  return summary;
}

void read(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) std::abort();
}

}  // namespace

int main() {
  uint32_t header[4];
  while (std::fread(header, sizeof header, 1, stdin) == 1) {
    const auto [frame_bytes, to_bytes, count, alignment] = header;
    // Just large enough, so that a sanitizer sees what is read beyond the frame.
    std::vector<uint8_t> memory(alignment + frame_bytes);
    uint8_t* frame = memory.data() + alignment;
    read(frame, frame_bytes);
    std::vector<zstd::Block> blocks(count);
    read(blocks.data(), count * sizeof(zstd::Block));
    std::vector<zstd::Summary> summaries;
    for (const zstd::Block& block : blocks) summaries.push_back(check_block(block, frame));
    const uint32_t error = zstd::check_frame(summaries.data(), count, to_bytes);
    // Our own decoder accepts the same frames, by the same descriptions.
    const zstd_gpu::Exact decoded(to_bytes, alignment % 16);
    const uint32_t own =
        zstd_gpu::decode_blocks(blocks, frame, frame_bytes, decoded.data, to_bytes, 8, 1);
    if ((error == 0) != (own == 0)) {
      std::fprintf(stderr, "the check says %u, the decoder %u in block %u\n", error, own & 255,
                   own >> 8);
      std::abort();
    }
    std::fwrite(&error, sizeof error, 1, stdout);
    std::fflush(stdout);
  }
}
