#pragma once
// The warp of src/kernels/warp_each.cuh on the host: lanes run one after the other, forwards or
// backwards, so that a step that depends on their order shows. Copies take place when they are
// waited for: until then their place has other bytes.

#include <cstdint>
#include <cstring>
#include <vector>

#include "../../src/kernels/warp_each.cuh"

namespace warp {

struct Host {
  static inline bool backwards = false;

  template <class T>
  struct Var {
    T values[kLanes];
    T& operator[](uint32_t lane) { return values[lane]; }
    const T& operator[](uint32_t lane) const { return values[lane]; }
  };
  template <class Step>
  static void each(Step step) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      current = backwards ? kLanes - 1 - i : i;
      step(current);
    }
    current = kLanes;
  }
  static void sync() {}
  static uint32_t ballot(const Var<bool>& var) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < kLanes; ++i) bits |= uint32_t{var[i]} << i;
    return bits;
  }
  static bool any(const Var<bool>& var) { return ballot(var) != 0; }
  static uint32_t of_lane(const Var<uint32_t>& var, uint32_t lane) { return var[lane]; }
  static Var<uint32_t> gather(const Var<uint32_t>& var, const Var<uint32_t>& lane) {
    Var<uint32_t> result;
    for (uint32_t i = 0; i < kLanes; ++i) result[i] = var[lane[i] % kLanes];
    return result;
  }
  static Var<uint32_t> from_before(const Var<uint32_t>& var, uint32_t step) {
    Var<uint32_t> result;
    for (uint32_t i = 0; i < kLanes; ++i) result[i] = var[i < step ? i : i - step];
    return result;
  }
  static Var<uint32_t> from_next(Var<uint32_t> var, uint32_t last) {
    for (uint32_t i = 0; i + 1 < kLanes; ++i) var[i] = var[i + 1];
    var[kLanes - 1] = last;
    return var;
  }
  static Var<uint32_t> up_to(Var<uint32_t> var) {
    for (uint32_t i = 1; i < kLanes; ++i) var[i] += var[i - 1];
    return var;
  }
  static uint32_t largest(const Var<uint32_t>& var) {
    uint32_t result = 0;
    for (uint32_t value : var.values) result = value > result ? value : result;
    return result;
  }
  static void set_bits(uint32_t* word, uint32_t bits) { *word |= bits; }
  static void raise(uint32_t* word, uint32_t value) { *word = value > *word ? value : *word; }
  static void copy_wide(Wide* to, const Wide* from) {
    std::memset(to, 0xA5, sizeof(Wide));
    copies.push_back({to, from, current, false});
  }
  static void wait_for_copies() {
    arrive([](const Copy&) { return true; });
  }
  static void wait_for_earlier_copies() {
    arrive([](const Copy& copy) { return copy.is_earlier; });
    for (Copy& copy : copies) copy.is_earlier |= is_own(copy);
  }

 private:
  /// A copy that was begun by a lane, or outside of `each` by none.
  struct Copy {
    Wide* to;
    const Wide* from;
    uint32_t lane;
    bool is_earlier;
  };
  static inline thread_local uint32_t current = kLanes;
  static inline thread_local std::vector<Copy> copies;

  /// Outside of `each` the copies of all lanes are meant.
  static bool is_own(const Copy& copy) { return current == kLanes || copy.lane == current; }
  template <class Which>
  static void arrive(Which which) {
    std::vector<Copy> left;
    for (const Copy& copy : copies) {
      if (is_own(copy) && which(copy)) {
        std::memcpy(copy.to, copy.from, sizeof(Wide));
      } else {
        left.push_back(copy);
      }
    }
    copies.swap(left);
  }
};

}  // namespace warp
