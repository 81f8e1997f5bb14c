// Undoes shuffles on the host with the code of src/kernels/unshuffle.cuh, for
// tests/python/test_kernels_lz.py.
//
//   unshuffle_test CASES RESULTS
//
// CASES holds, for each chunk, five little-endian uint32 (kind, skew, element size, block size,
// size) and the shuffled bytes; RESULTS receives the bytes of each. `skew` places the buffers as in
// lz_test.cc.

#include "unshuffle.cuh"

#include <cstdio>
#include <cstring>
#include <memory>

int main(int count, char** arguments) {
  if (count != 3) return 2;
  FILE* cases = fopen(arguments[1], "rb");
  FILE* results = fopen(arguments[2], "wb");
  if (!cases || !results) return 2;
  uint32_t header[5];
  while (fread(header, sizeof(header), 1, cases) == 1) {
    const auto [kind, skew, element_bytes, block_bytes, bytes] = header;
    const uint32_t from_skew = skew % 16, to_skew = skew / 16 % 16;
    std::unique_ptr<uint8_t[]> from(new uint8_t[from_skew + bytes]);
    std::unique_ptr<uint8_t[]> to(new uint8_t[to_skew + bytes]);
    if (fread(from.get() + from_skew, 1, bytes, cases) != bytes) return 2;
    memset(to.get(), 0xa5, to_skew + bytes);
    const shuffled::Shuffled chunk = {reinterpret_cast<uint64_t>(from.get() + from_skew),
                                      reinterpret_cast<uint64_t>(to.get() + to_skew),
                                      bytes,
                                      0,
                                      block_bytes,
                                      element_bytes,
                                      kind,
                                      0};
    auto tiles_of = [](uint32_t block) {
      return (block + shuffled::TILE_BYTES - 1) / shuffled::TILE_BYTES;
    };
    const uint64_t tiles =
        uint64_t{bytes / block_bytes} * tiles_of(block_bytes) + tiles_of(bytes % block_bytes);
    constexpr uint32_t THREADS = 256;
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      for (uint32_t thread = 0; thread < THREADS; ++thread) {
        shuffled::unshuffle_tile(chunk, tile, thread, THREADS);
      }
    }
    for (uint32_t i = 0; i < to_skew; ++i) {
      if (to[i] != 0xa5) return 1;
    }
    fwrite(to.get() + to_skew, 1, bytes, results);
  }
  fclose(cases);
  return fclose(results) == 0 ? 0 : 2;
}
