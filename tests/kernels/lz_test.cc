// Decodes streams on the host with the code of src/kernels/lz.cuh, for
// tests/python/test_kernels_lz.py.
//
//   lz_test CASES RESULTS
//
// CASES holds, for each stream, four little-endian uint32 (format, skew, encoded size, decoded
// size) and the encoded bytes; RESULTS receives for each its StreamError as a uint32 and, if that
// is 0, the decoded bytes. `skew` places the buffers: the encoded bytes lie skew % 16 after a
// 16-byte boundary, the decoded ones skew / 16. Both end where their allocation ends, so that
// AddressSanitizer sees each stray access.
//
// Each stream is decoded twice, with the lanes of a step in rising and in falling order: what they
// do may not depend on it, since on a GPU they run at once.

#include "lz.cuh"

#include <sanitizer/asan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>

namespace {

struct HostWarp {
  static constexpr uint32_t LANES = 32;
  static inline bool falling = false;

  template <class T>
  struct PerLane {
    T values[LANES];
    T& operator[](uint32_t lane) { return values[lane]; }
  };

  template <class Step>
  static void each(Step step) {
    for (uint32_t i = 0; i < LANES; ++i) step(falling ? LANES - 1 - i : i);
  }

  template <class Condition>
  static uint32_t leading(Condition condition) {
    uint32_t lane = 0;
    while (lane < LANES && condition(lane)) ++lane;
    return lane;
  }

  static void sync() {}
};

uint32_t decode(uint32_t format, const Stream& stream, lz::Scratch& scratch) {
  switch (format) {
    case 0:
      return lz::copy_stored<HostWarp>(stream);
    case 1:
      return lz::decode<lz::Lz4, HostWarp>(stream, scratch);
    case 2:
      return lz::decode<lz::BloscLz, HostWarp>(stream, scratch);
    case 3:
      return lz::decode<lz::Snappy, HostWarp>(stream, scratch);
  }
  fprintf(stderr, "no format %u\n", format);
  exit(2);
}

// A 16-byte aligned allocation with `bytes` bytes at its end, `skew` after the boundary. What lies
// before them is a canary.
class Buffer {
 public:
  Buffer(uint32_t skew, uint32_t bytes) : skew_(skew), memory_(new uint8_t[skew + bytes]) {
    memset(memory_.get(), CANARY, skew + bytes);
    ASAN_POISON_MEMORY_REGION(memory_.get(), skew / 8 * 8);
  }
  ~Buffer() { ASAN_UNPOISON_MEMORY_REGION(memory_.get(), skew_); }
  uint8_t* data() { return memory_.get() + skew_; }
  bool intact() const {
    for (uint32_t i = skew_ / 8 * 8; i < skew_; ++i) {
      if (memory_[i] != CANARY) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t CANARY = 0xa5;
  uint32_t skew_;
  std::unique_ptr<uint8_t[]> memory_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  FILE* cases = fopen(arguments[1], "rb");
  FILE* results = fopen(arguments[2], "wb");
  if (!cases || !results) return 2;
  auto scratch = std::make_unique<lz::Scratch>();
  uint32_t header[4];
  for (uint32_t index = 0; fread(header, sizeof(header), 1, cases) == 1; ++index) {
    const auto [format, skew, from_bytes, to_bytes] = header;
    Buffer from(skew % 16, from_bytes), rising(skew / 16 % 16, to_bytes),
        falling(skew / 16 % 16, to_bytes);
    if (fread(from.data(), 1, from_bytes, cases) != from_bytes) return 2;
    uint32_t errors[2];
    for (bool order : {false, true}) {
      Buffer& to = order ? falling : rising;
      HostWarp::falling = order;
      memset(scratch.get(), order ? 0xff : 0x00, sizeof(*scratch));
      const Stream stream = {reinterpret_cast<uint64_t>(from.data()),
                             reinterpret_cast<uint64_t>(to.data()), from_bytes, to_bytes, 0};
      errors[order] = decode(format, stream, *scratch);
      if (!to.intact()) {
        fprintf(stderr, "case %u: written before the output\n", index);
        return 1;
      }
    }
    // After an error as well: what was written until then may not depend on the order either.
    if (errors[0] != errors[1] || memcmp(rising.data(), falling.data(), to_bytes) != 0) {
      fprintf(stderr, "case %u: depends on the order of the lanes\n", index);
      return 1;
    }
    fwrite(errors, sizeof(uint32_t), 1, results);
    if (errors[0] == kStreamOk) fwrite(rising.data(), 1, to_bytes, results);
  }
  fclose(cases);
  return fclose(results) == 0 ? 0 : 2;
}
