// Compares checksums, one block a checksum: checks.cuh says how they are computed.

#include "checks.cuh"

namespace checks {
constexpr uint32_t kThreads = 1024;
}

extern "C" __global__ void __launch_bounds__(checks::kThreads)
    check(const Check* checks, uint32_t count) {
  __shared__ checks::Shared shared;
  const lanes::Block<checks::kThreads> block;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Check check = checks[i];
    uint32_t expected = static_cast<uint32_t>(check.expected);
    if (check.is_at) {
      const uint8_t* at = reinterpret_cast<const uint8_t*>(check.expected);
      expected = at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24;
    }
    const bool same = checks::checksum(block, shared, check) == expected;
    if (block.lane() == 0 && !same) lanes::report(check.status, kStreamChecksum);
  }
}
