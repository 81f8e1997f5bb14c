#pragma once
// A warp whose lanes the code names: `each` runs a step on every lane, a `Var` holds one value for
// each.
//
// A kernel written against it is compiled twice: for a GPU, where a `Var` is a register and `each`
// a plain call, and for the host (tests/kernels/host_warp.h), where a `Var` is an array and `each`
// a loop. Inside `each`, lanes run in any order and read nothing that another lane writes; what one
// lane leaves in memory for another needs a `sync` between. Values outside of `each` are the same
// on every lane.

#include <cstdint>

#ifdef __CUDACC__
#define WARP_FN __device__ __forceinline__
#define WARP_BOTH __host__ __device__ __forceinline__
#define WARP_CONSTANT __device__ const
#define WARP_UNROLL _Pragma("unroll")
#define WARP_NO_UNROLL _Pragma("unroll 1")
#else
#define WARP_FN inline
#define WARP_BOTH inline
#define WARP_CONSTANT const
#define WARP_UNROLL
#define WARP_NO_UNROLL
#endif

namespace warp {

constexpr uint32_t kLanes = 32;

WARP_FN uint32_t count_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __popc(bits);
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

/// Floor of the logarithm to base 2 of a value above 0.
WARP_FN uint32_t log2_floor(uint32_t value) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(value);
#else
  return 31 - static_cast<uint32_t>(__builtin_clz(value));
#endif
}

/// The highest 32 bits of high:low shifted left by `bits` modulo 32.
WARP_FN uint32_t shift_left(uint32_t low, uint32_t high, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, bits);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << bits % 32 >> 32);
#endif
}

/// The highest `count` modulo 32 bits of a word.
WARP_FN uint32_t highest(uint32_t word, uint32_t count) { return shift_left(word, 0, count); }

/// The second-lowest byte of each word, the first word's lowest.
WARP_FN uint32_t second_bytes(const uint32_t (&words)[4]) {
#ifdef __CUDA_ARCH__
  return __byte_perm(__byte_perm(words[0], words[1], 0x0051),
                     __byte_perm(words[2], words[3], 0x0051), 0x5410);
#else
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= (words[i] >> 8 & 255) << 8 * i;
  return bytes;
#endif
}

struct alignas(16) Wide {
  uint32_t words[4];
};

#ifdef __CUDACC__

struct Device {
  template <class T>
  struct Var {
    T value;
    WARP_FN T& operator[](uint32_t) { return value; }
    WARP_FN const T& operator[](uint32_t) const { return value; }
  };
  template <class Step>
  WARP_FN static void each(Step step) {
    step(threadIdx.x % kLanes);
  }
  WARP_FN static void sync() { __syncwarp(); }
  WARP_FN static uint32_t ballot(const Var<bool>& var) { return __ballot_sync(~0u, var.value); }
  WARP_FN static bool any(const Var<bool>& var) { return __any_sync(~0u, var.value); }
  /// The value of one lane.
  WARP_FN static uint32_t of_lane(const Var<uint32_t>& var, uint32_t lane) {
    return __shfl_sync(~0u, var.value, static_cast<int>(lane));
  }
  /// For every lane the value of the lane that it names.
  WARP_FN static Var<uint32_t> gather(const Var<uint32_t>& var, const Var<uint32_t>& lane) {
    return {__shfl_sync(~0u, var.value, static_cast<int>(lane.value))};
  }
  /// For every lane the value of the lane `step` before it; the first ones keep their own.
  WARP_FN static Var<uint32_t> from_before(const Var<uint32_t>& var, uint32_t step) {
    return {__shfl_up_sync(~0u, var.value, step)};
  }
  /// For every lane the value of the lane after it, and for the last one `last`.
  WARP_FN static Var<uint32_t> from_next(const Var<uint32_t>& var, uint32_t last) {
    const uint32_t next = __shfl_down_sync(~0u, var.value, 1);
    return {threadIdx.x % kLanes + 1 < kLanes ? next : last};
  }
  /// The sum up to and with each lane.
  WARP_FN static Var<uint32_t> up_to(Var<uint32_t> var) {
    WARP_UNROLL
    for (uint32_t step = 1; step < kLanes; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, var.value, step);
      if (threadIdx.x % kLanes >= step) var.value += other;
    }
    return var;
  }
  WARP_FN static uint32_t largest(const Var<uint32_t>& var) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, var.value);
#else
    uint32_t value = var.value;
    for (int step = 16; step; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
    return value;
#endif
  }
  WARP_FN static uint32_t smallest(const Var<uint32_t>& var) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(~0u, var.value);
#else
    uint32_t value = var.value;
    for (int step = 16; step; step /= 2) value = min(value, __shfl_xor_sync(~0u, value, step));
    return value;
#endif
  }
  /// Sets bits of a word in shared memory.
  WARP_FN static void set_bits(uint32_t* word, uint32_t bits) { atomicOr(word, bits); }
  /// Makes a word in memory at least `value`.
  WARP_FN static void raise(uint32_t* word, uint32_t value) { atomicMax(word, value); }
  /// Begins to copy 16 bytes to shared memory, at aligned addresses; a lane sees its own after
  /// `wait_for_copies`, others after a `sync` too.
  WARP_FN static void copy_wide(Wide* to, const Wide* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *to = *from;
#endif
  }
  /// Waits for the copies that were begun before the last call of this, but not for those since.
  WARP_FN static void wait_for_earlier_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
#endif
  }
  WARP_FN static void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }
};

#endif

}  // namespace warp
