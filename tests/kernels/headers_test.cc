// src/kernels/headers.cuh on the host, for tests/zstd_check.rs.
//
// Reads cases from standard input until it ends: three uint32 (size of the chunk, size that it has
// to decode to, its Format) and the chunk. Answers each with as many bytes: those of headers, and
// of every other byte the complement.

#include "../../src/kernels/headers.cuh"

#include <cstdio>
#include <cstdlib>

#include "zstd_on_host.h"

namespace {

void read(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) std::abort();
}

}  // namespace

int main() {
  constexpr uint32_t kWarps = 3;
  uint32_t header[3];
  while (std::fread(header, sizeof header, 1, stdin) == 1) {
    const auto [bytes, decoded_bytes, format] = header;
    // Just large enough, so that a sanitizer sees what is read or written outside.
    const zstd_gpu::Exact from(bytes, 3), to(bytes, 5);
    read(from.data, bytes);
    for (uint32_t i = 0; i < bytes; ++i) to.data[i] = static_cast<uint8_t>(~from.data[i]);
    const headers::Chunk chunk = {from.data, to.data, bytes, decoded_bytes, format};
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      headers::copy_headers<warp::Host>(chunk, warp, kWarps);
    }
    std::fwrite(to.data, 1, bytes, stdout);
    std::fflush(stdout);
  }
}
