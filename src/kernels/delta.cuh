#pragma once
// Undoes numcodecs' Delta of integers: an inclusive prefix sum in place, with wrap-around.
//
//   for each tile of the chunk (in order):              LANES x 16 bytes, 16 bytes a lane
//     sums = prefix sums of the lane's elements
//     before = total of the tiles before + sum of the lanes before
//     element = before + sum
//
// Addresses that are multiples of 16 are loaded and stored 16 bytes at a time, others elementwise.

#include <cstring>

#include "lanes.cuh"

/// One chunk: summed up by one block. Mirrored by the Rust host code.
struct Delta {
  uint64_t address;        // of the elements, in this machine's byte order; any alignment
  uint64_t elements;       // how many
  uint32_t element_bytes;  // 1, 2, 4 or 8
  uint32_t reserved;
};

namespace delta {

template <typename Word>
struct alignas(16) Vector {
  static constexpr uint32_t kLength = 16 / sizeof(Word);
  Word words[kLength];
};

/// `Sum` is at least as wide as `Word`, and an integer that lanes can shuffle.
template <typename Word, typename Sum, class Lanes>
LANES_FN void add_up(Lanes lanes, const Delta& chunk) {
  constexpr uint32_t kLength = Vector<Word>::kLength;
  uint8_t* data = reinterpret_cast<uint8_t*>(chunk.address);
  const bool aligned = chunk.address % 16 == 0;
  Sum carry = 0;
  for (uint64_t tile = 0; tile < chunk.elements; tile += Lanes::LANES * kLength) {
    const uint64_t first = tile + lanes.lane() * kLength;
    const uint64_t left = first < chunk.elements ? chunk.elements - first : 0;
    const uint32_t count = left < kLength ? static_cast<uint32_t>(left) : kLength;
    uint8_t* at = data + first * sizeof(Word);
    Vector<Word> vector = {};
    if (aligned && count == kLength) {
      vector = *reinterpret_cast<const Vector<Word>*>(at);
    } else {
      LANES_UNROLL
      for (uint32_t i = 0; i < kLength; ++i) {
        if (i < count) memcpy(&vector.words[i], at + i * sizeof(Word), sizeof(Word));
      }
    }
    Sum sum = 0, total;
    LANES_UNROLL
    for (uint32_t i = 0; i < kLength; ++i) {
      sum += vector.words[i];
      vector.words[i] = static_cast<Word>(sum);
    }
    const Sum before = carry + lanes.before(sum, &total);
    carry += total;
    LANES_UNROLL
    for (uint32_t i = 0; i < kLength; ++i)
      vector.words[i] = static_cast<Word>(vector.words[i] + before);
    if (aligned && count == kLength) {
      *reinterpret_cast<Vector<Word>*>(at) = vector;
    } else {
      LANES_UNROLL
      for (uint32_t i = 0; i < kLength; ++i) {
        if (i < count) memcpy(at + i * sizeof(Word), &vector.words[i], sizeof(Word));
      }
    }
  }
}

template <class Lanes>
LANES_FN void undo(Lanes lanes, const Delta& chunk) {
  switch (chunk.element_bytes) {
    case 1:
      return add_up<uint8_t, uint32_t>(lanes, chunk);
    case 2:
      return add_up<uint16_t, uint32_t>(lanes, chunk);
    case 4:
      return add_up<uint32_t, uint32_t>(lanes, chunk);
    case 8:
      return add_up<uint64_t, uint64_t>(lanes, chunk);
    default:
      return;
  }
}

}  // namespace delta
