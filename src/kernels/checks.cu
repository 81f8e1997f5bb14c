// Compares checksums: one block of threads for each.

#include <cstdint>

#include "checks.cuh"

extern "C" __global__ void __launch_bounds__(256) check(const Check* list, uint32_t) {
  __shared__ uint32_t table[256];
  __shared__ unsigned long long first, second;
  __shared__ uint64_t lanes[4];
  const Check check = list[blockIdx.x];
  const uint8_t* from = reinterpret_cast<const uint8_t*>(check.from);
  const uint32_t self = threadIdx.x;
  const bool is_crc = check.kind == kCrc32 || check.kind == kCrc32c;
  if (self == 0) first = second = 0;
  table[self] = is_crc ? checks::crc_entry(self, checks::polynomial(check.kind)) : 0;
  __syncthreads();
  if (check.kind == kXxh64) {
    if (self < 4) lanes[self] = checks::xxh64_lane(from, check.bytes, self);
  } else {
    const checks::Part part = checks::part(check, table, self);
    if (is_crc) {
      atomicXor(&first, static_cast<unsigned long long>(part.first));
    } else {
      atomicAdd(&first, static_cast<unsigned long long>(part.first));
      atomicAdd(&second, static_cast<unsigned long long>(part.second));
    }
  }
  __syncthreads();
  if (self != 0) return;
  const uint32_t found = check.kind == kXxh64
                             ? static_cast<uint32_t>(checks::xxh64(from, check.bytes, lanes))
                             : checks::total(check, {first, second});
  if (found != checks::expected(check)) {
    atomicCAS(reinterpret_cast<uint32_t*>(check.status), 0u, uint32_t(kStreamChecksum));
  }
}
