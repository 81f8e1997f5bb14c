#pragma once
// Checksums over bytes in memory, by many threads at once.
//
//   each thread:  sums up a segment of its own
//   then:         every segment's sum, moved to its place, is added up
//
// A CRC is moved by multiplying it with x to the power of the bits behind the segment; the sums of
// Adler-32 and Fletcher-32 by adding the first sum once for each byte (word) behind it. XXH64 is
// serial: four threads take one of its lanes each. The same code compiles for the host, one segment
// after another, where it is tested.

#include <cstdint>

#include "streams.cuh"

#ifdef __CUDACC__
#define CHECK_FN __host__ __device__ inline
#else
#define CHECK_FN inline
#endif

// A checksum to be compared, by one block of threads. Mirrored by the Rust host code.
struct Check {
  uint64_t from;      // address of the bytes, any alignment
  uint64_t bytes;     // how many
  uint64_t expected;  // the checksum, or the address of its four bytes, little-endian
  uint64_t status;    // address of a uint32_t that receives kStreamChecksum if it is another
  uint32_t kind;      // a CheckKind
  uint32_t expected_is_address;  // 1 if `expected` is an address
};

enum CheckKind : uint32_t { kCrc32 = 1, kAdler32 = 2, kXxh64 = 3, kCrc32c = 4, kFletcher32 = 5 };

namespace checks {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kCrc32Polynomial = 0xEDB88320, kCrc32cPolynomial = 0x82F63B78;

CHECK_FN uint32_t polynomial(uint32_t kind) {
  return kind == kCrc32c ? kCrc32cPolynomial : kCrc32Polynomial;
}

/// An entry of the table that takes in a byte.
CHECK_FN uint32_t crc_entry(uint32_t byte, uint32_t polynomial) {
  for (int bit = 0; bit < 8; ++bit) byte = byte >> 1 ^ (byte & 1 ? polynomial : 0);
  return byte;
}

/// The product of two polynomials modulo the CRC's; the highest bit stands for x to the power of 0.
CHECK_FN uint32_t product(uint32_t a, uint32_t b, uint32_t polynomial) {
  uint32_t result = 0;
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    if (a & bit) result ^= b;
    b = b >> 1 ^ (b & 1 ? polynomial : 0);
  }
  return result;
}

/// A CRC as if `bytes` zero bytes followed.
CHECK_FN uint32_t shifted(uint32_t crc, uint64_t bytes, uint32_t polynomial) {
  uint32_t power = 0x00800000;  // x to the power of 8
  for (; bytes; bytes >>= 1) {
    if (bytes & 1) crc = product(power, crc, polynomial);
    power = product(power, power, polynomial);
  }
  return crc;
}

/// Calls `take` with each byte of a range, read in words where they are aligned.
template <typename Take>
CHECK_FN void each_byte(const uint8_t* from, uint64_t begin, uint64_t end, Take take) {
  while (begin < end && reinterpret_cast<uint64_t>(from + begin) % 8 != 0) take(from[begin++]);
  for (; begin + 8 <= end; begin += 8) {
    const uint64_t word = *reinterpret_cast<const uint64_t*>(from + begin);
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int byte = 0; byte < 8; ++byte) take(static_cast<uint8_t>(word >> (8 * byte)));
  }
  while (begin < end) take(from[begin++]);
}

/// What a thread finds out about its segment, already moved to its place.
struct Part {
  uint64_t first;  // of a CRC all there is
  uint64_t second;
};

/// Start of a segment: segments are whole words of Fletcher-32 and of memory.
CHECK_FN uint64_t segment(uint64_t bytes, uint32_t number) {
  const uint64_t start = (bytes / kThreads + 16) / 16 * 16 * number;
  return start < bytes ? start : bytes;
}

/// The part of segment `number`. `table` holds the CRC's entries.
CHECK_FN Part part(const Check& check, const uint32_t* table, uint32_t number) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(check.from);
  const uint64_t begin = segment(check.bytes, number), end = segment(check.bytes, number + 1);
  const uint64_t behind = check.bytes - end;
  uint64_t first = 0, second = 0;
  if (check.kind == kCrc32 || check.kind == kCrc32c) {
    uint32_t crc = number == 0 ? 0xFFFFFFFFu : 0;
    each_byte(from, begin, end, [&](uint8_t byte) { crc = crc >> 8 ^ table[(crc ^ byte) & 255]; });
    return {shifted(crc, behind, polynomial(check.kind)), 0};
  }
  if (check.kind == kAdler32) {
    each_byte(from, begin, end, [&](uint8_t byte) {
      first += byte;
      second += first;
    });
    first %= 65521;
    second = (second + first * (behind % 65521)) % 65521;
  } else {
    // Words of two bytes, the first one high; a last byte alone is a high one.
    uint32_t high = 0;
    uint64_t place = begin;
    each_byte(from, begin, end, [&](uint8_t byte) {
      if (place++ % 2 == 0) {
        high = byte;
        if (place == check.bytes) {
          first += high << 8;
          second += first;
        }
      } else {
        first += high << 8 | byte;
        second += first;
      }
    });
    const uint64_t words_behind = (check.bytes + 1) / 2 - (end + 1) / 2;
    second = second % 65535 + first % 65535 * (words_behind % 65535);
  }
  return {first, second};
}

/// The checksum from the parts' sums (for a CRC their exclusive or).
CHECK_FN uint32_t total(const Check& check, Part sum) {
  if (check.kind == kCrc32 || check.kind == kCrc32c) return ~static_cast<uint32_t>(sum.first);
  if (check.kind == kAdler32) {
    const uint64_t low = (1 + sum.first) % 65521, high = (check.bytes + sum.second) % 65521;
    return static_cast<uint32_t>(high << 16 | low);
  }
  // numcodecs folds carries back in, which never makes 0 of a sum that is not.
  const uint64_t low = sum.first ? (sum.first - 1) % 65535 + 1 : 0;
  const uint64_t high = sum.second ? (sum.second - 1) % 65535 + 1 : 0;
  return static_cast<uint32_t>((sum.first && !high ? 65535 : high) << 16 | low);
}

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull, kPrime2 = 0xC2B2AE3D27D4EB4Full,
                   kPrime3 = 0x165667B19E3779F9ull, kPrime4 = 0x85EBCA77C2B2AE63ull,
                   kPrime5 = 0x27D4EB2F165667C5ull;

CHECK_FN uint64_t rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

CHECK_FN uint64_t xxh64_round(uint64_t lane, uint64_t word) {
  return rotated(lane + word * kPrime2, 31) * kPrime1;
}

CHECK_FN uint64_t word_at(const uint8_t* from) {
  if (reinterpret_cast<uint64_t>(from) % 8 == 0) return *reinterpret_cast<const uint64_t*>(from);
  uint64_t word = 0;
  for (int byte = 0; byte < 8; ++byte) word |= uint64_t(from[byte]) << (8 * byte);
  return word;
}

/// One of the four lanes after all whole stripes of 32 bytes.
CHECK_FN uint64_t xxh64_lane(const uint8_t* from, uint64_t bytes, uint32_t number) {
  constexpr int kAhead = 8;  // words on their way at once
  uint64_t lane = number == 0   ? kPrime1 + kPrime2
                  : number == 1 ? kPrime2
                  : number == 2 ? 0
                                : 0 - kPrime1;
  const uint64_t stripes = bytes / 32;
  const uint8_t* at = from + 8 * number;
  uint64_t stripe = 0;
  for (; stripe + kAhead <= stripes; stripe += kAhead) {
    uint64_t words[kAhead];
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int i = 0; i < kAhead; ++i) words[i] = word_at(at + (stripe + i) * 32);
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int i = 0; i < kAhead; ++i) lane = xxh64_round(lane, words[i]);
  }
  for (; stripe < stripes; ++stripe) lane = xxh64_round(lane, word_at(at + stripe * 32));
  return lane;
}

/// The hash (seed 0) from the lanes and the bytes behind the last whole stripe.
CHECK_FN uint64_t xxh64(const uint8_t* from, uint64_t bytes, const uint64_t (&lanes)[4]) {
  uint64_t hash = kPrime5;
  if (bytes >= 32) {
    hash =
        rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18);
    for (uint64_t lane : lanes) hash = (hash ^ xxh64_round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes;
  uint64_t at = bytes / 32 * 32;
  for (; at + 8 <= bytes; at += 8) {
    hash = rotated(hash ^ xxh64_round(0, word_at(from + at)), 27) * kPrime1 + kPrime4;
  }
  if (at + 4 <= bytes) {
    uint64_t word = 0;
    for (int byte = 0; byte < 4; ++byte) word |= uint64_t(from[at + byte]) << (8 * byte);
    hash = rotated(hash ^ word * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < bytes; ++at) hash = rotated(hash ^ from[at] * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

/// What the checksum has to be.
CHECK_FN uint32_t expected(const Check& check) {
  if (!check.expected_is_address) return static_cast<uint32_t>(check.expected);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(check.expected);
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t(bytes[3]) << 24;
}

}  // namespace checks
