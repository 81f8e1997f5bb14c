#pragma once
// What lanes that work on one task together need of each other.
//
// The decoders are templates over one of these policies, so that tests compile and run the same
// code on the host (tests/kernels/lanes.h). A policy has `LANES`, `lane()`, and collectives that
// every lane must reach together: `sync()` and those named below.

#include <cstdint>

#ifdef __CUDACC__
#define LANES_FN __device__ __forceinline__
#define LANES_UNROLL _Pragma("unroll")
#define LANES_UNROLL_8 _Pragma("unroll 8")
#else
#define LANES_FN inline
#define LANES_UNROLL
#define LANES_UNROLL_8
#endif

namespace lanes {

LANES_FN uint32_t reverse_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __brev(bits);
#else
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1) << (31 - i);
  return reversed;
#endif
}

LANES_FN uint32_t count_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __popc(bits);
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

/// The lower half of high:low, shifted by `bits` modulo 32.
LANES_FN uint32_t shift_right(uint32_t low, uint32_t high, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> bits % 32);
#endif
}

/// A load from shared memory that is begun here, even if it is not known yet whether it is needed.
LANES_FN uint32_t load_now(const uint32_t* from) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.volatile.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
  return value;
#else
  return *from;
#endif
}

#ifdef __CUDACC__

/// Leaves the first error of a stream at `status`; one lane calls it.
__device__ inline void report(uint64_t status, uint32_t error) {
  if (error) atomicCAS(reinterpret_cast<unsigned int*>(status), 0u, error);
}

/// The 32 lanes of a warp.
struct Warp {
  static constexpr uint32_t LANES = 32;

  LANES_FN uint32_t lane() const { return threadIdx.x % 32; }
  LANES_FN void sync() const { __syncwarp(); }
  /// Copies one word to shared memory; it is there after `wait_for_copies` and `sync`.
  LANES_FN void copy(uint32_t* to, const uint32_t* from) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *to = *from;
#endif
  }
  LANES_FN void wait_for_copies() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }
  /// The lanes that hold the same value as this one, as bits.
  LANES_FN uint32_t match(uint32_t value) const { return __match_any_sync(~0u, value); }
};

/// The threads of a block of `THREADS`, a multiple of 32.
template <uint32_t THREADS>
struct Block {
  static constexpr uint32_t LANES = THREADS;
  static constexpr uint32_t WARPS = THREADS / 32;

  LANES_FN uint32_t lane() const { return threadIdx.x; }
  LANES_FN void sync() const { __syncthreads(); }
  /// The sum over the lanes, modulo 2^64.
  LANES_FN uint64_t sum(uint64_t value) const {
    uint64_t total;
    before(value, &total);
    return total;
  }
  /// The exclusive or over the lanes.
  LANES_FN uint32_t exclusive_or(uint32_t value) const {
    __shared__ uint32_t of_warps[WARPS];
    value = of_warp(value);
    if (lane() % 32 == 0) of_warps[lane() / 32] = value;
    __syncthreads();
    value = of_warp(lane() % 32 < WARPS ? of_warps[lane() % 32] : 0);
    __syncthreads();
    return value;
  }
  /// The sum over the lanes before this one; `total` is the sum over all, both modulo the word.
  template <typename Word>
  LANES_FN Word before(Word value, Word* total) const {
    static_assert(WARPS <= 32, "one warp adds up the sums of the others");
    __shared__ Word of_warps[WARPS];
    const Word within = up_to(value);
    if (lane() % 32 == 31) of_warps[lane() / 32] = within;
    __syncthreads();
    const Word warps = up_to(lane() % 32 < WARPS ? of_warps[lane() % 32] : Word{0});
    const uint32_t warp = lane() / 32;
    const Word earlier = __shfl_sync(~0u, warps, static_cast<int>(warp ? warp - 1 : 0));
    *total = __shfl_sync(~0u, warps, 31);
    __syncthreads();
    return (warp ? earlier : Word{0}) + within - value;
  }

 private:
  /// The exclusive or over the lanes of the warp.
  LANES_FN static uint32_t of_warp(uint32_t value) {
    for (int step = 16; step; step /= 2) value ^= __shfl_xor_sync(~0u, value, step);
    return value;
  }
  /// The sum over the lanes of the warp up to this one.
  template <typename Word>
  LANES_FN Word up_to(Word value) const {
    for (unsigned int step = 1; step < 32; step *= 2) {
      const Word other = __shfl_up_sync(~0u, value, step);
      if (lane() % 32 >= step) value += other;
    }
    return value;
  }
};

#endif

}  // namespace lanes
