#pragma once
// Checksums of decoded bytes, by all lanes of a block.
//
// The bytes are taken as aligned 32-bit words, lane by lane: word g belongs to lane g modulo LANES,
// so that neighbours load neighbours. Bytes of the first word that come before the data count as
// zeros, and those after the last whole word are added by one lane.
//
//   crc32, crc32c   a lane's words are LANES words apart, so its register advances by as many zero
//                   bits between them: four table lookups a word. Then each lane advances its own
//                   to the end of the row, and all are added up (exclusive or)
//   adler32         the sums of b_i and of i b_i
//   fletcher32      the sums of v_i and of (i / 2) v_i, where v_i is b_i, times 256 for even i
//   xxh64           four accumulators, each a chain of multiplications that cannot be cut: four
//                   lanes follow them, the others load and multiply for them a tile ahead

#include "lanes.cuh"
#include "streams.cuh"

/// One checksum: computed by one block. Mirrored by the Rust host code.
struct Check {
  uint64_t from;      // address of the decoded bytes, any alignment
  uint64_t bytes;     // how many
  uint64_t expected;  // the stored checksum in the lowest 32 bits, or where its 4 bytes are
  uint64_t status;    // as in Stream: receives kStreamChecksum
  uint32_t kind;      // a CheckKind
  uint32_t is_at;     // 1 if `expected` is an address, of little-endian bytes of any alignment
};

enum CheckKind : uint32_t {
  kCheckCrc32 = 1,       // of gzip
  kCheckAdler32 = 2,     // of zlib
  kCheckXxh64 = 3,       // with seed 0; its lowest 32 bits are the content checksum of zstd
  kCheckCrc32c = 4,      // of Zarr
  kCheckFletcher32 = 5,  // of numcodecs: 16-bit words, the higher byte first
};

namespace checks {

constexpr uint32_t kCrc32 = 0xedb88320;
constexpr uint32_t kCrc32c = 0x82f63b78;
constexpr uint32_t kTileWords = 2048;  // 64-bit words that are loaded ahead for xxh64

struct Shared {
  uint32_t advance[4][256];  // by four bytes: what each adds to the advanced register
  uint64_t tiles[2][kTileWords];
  uint64_t accumulators[4];
};

// --- crc: polynomials over GF(2), bit 31 is x^0 ---

template <uint32_t POLYNOMIAL>
LANES_FN constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  LANES_UNROLL_8
  for (int i = 31; i >= 0; --i) {
    product ^= b & (0 - (a >> i & 1));
    b = b >> 1 ^ (POLYNOMIAL & (0 - (b & 1)));
  }
  return product;
}

/// x^(32 * 2^i) for the exponents that advance a lane to the end of a row.
template <uint32_t POLYNOMIAL>
struct Powers {
  static constexpr uint32_t kCount = 11;
  uint32_t of[kCount];
};

template <uint32_t POLYNOMIAL>
LANES_FN constexpr Powers<POLYNOMIAL> powers() {
  Powers<POLYNOMIAL> powers{};
  uint32_t power = 1u << 30;
  for (int i = 0; i < 5; ++i) power = multiply<POLYNOMIAL>(power, power);
  for (uint32_t& of : powers.of) {
    of = power;
    power = multiply<POLYNOMIAL>(power, power);
  }
  return powers;
}

/// x^(32 * words) for fewer than 2048 words.
template <uint32_t POLYNOMIAL>
LANES_FN constexpr uint32_t power(uint32_t words) {
  constexpr Powers<POLYNOMIAL> kPowers = powers<POLYNOMIAL>();
  uint32_t power = 1u << 31;
  LANES_UNROLL
  for (uint32_t i = 0; i < kPowers.kCount; ++i) {
    if (words >> i & 1) power = multiply<POLYNOMIAL>(power, kPowers.of[i]);
  }
  return power;
}

/// The data as words.
class Words {
 public:
  LANES_FN Words(uint64_t from, uint64_t bytes)
      : from_(reinterpret_cast<const uint8_t*>(from)), bytes_(bytes), head_(from % 4) {
    whole_ = head_ + bytes < 4 ? 0 : (head_ + bytes) / 4;
    tail_ = whole_ ? (head_ + bytes) % 4 : bytes;
    first_ = 0;
    for (uint32_t i = head(); whole_ && i < 4; ++i) {
      first_ |= static_cast<uint32_t>(from_[i - head()]) << 8 * i;
    }
  }
  LANES_FN uint64_t count() const { return whole_; }
  /// Bytes before the first word's data.
  LANES_FN uint32_t head() const { return static_cast<uint32_t>(head_); }
  /// Bytes after the last word.
  LANES_FN uint32_t tail() const { return static_cast<uint32_t>(tail_); }
  LANES_FN uint8_t byte(uint64_t index) const { return from_[index]; }

  LANES_FN uint32_t operator[](uint64_t index) const {
    return index ? *reinterpret_cast<const uint32_t*>(from_ + (index * 4 - head_)) : first_;
  }

 private:
  const uint8_t* from_;
  uint64_t bytes_, head_, whole_, tail_;
  uint32_t first_;
};

template <uint32_t POLYNOMIAL, class Lanes>
LANES_FN uint32_t crc(Lanes lanes, Shared& shared, uint64_t from, uint64_t bytes) {
  static_assert(Lanes::LANES < 1 << Powers<POLYNOMIAL>::kCount, "a row needs more powers");
  const uint32_t lane = lanes.lane();
  constexpr uint32_t kRow = power<POLYNOMIAL>(Lanes::LANES);
  for (uint32_t i = lane; i < 1024; i += Lanes::LANES) {
    shared.advance[i / 256][i % 256] = multiply<POLYNOMIAL>(kRow, (i % 256) << 8 * (i / 256));
  }
  lanes.sync();

  const auto add_byte = [](uint32_t value, uint8_t byte) {
    value ^= byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (POLYNOMIAL & (0 - (value & 1)));
    return value;
  };
  const Words words(from, bytes);
  uint32_t value = ~0u;
  if (words.count() < 2) {
    for (uint64_t i = 0; i < bytes; ++i) value = add_byte(value, words.byte(i));
    lanes.sync();
    return ~value;
  }

  // The words end with the last lane, so that all lanes' last words are in the same row. A crc
  // begins with all bits set: that is, with the first four bytes inverted.
  const uint64_t rows = (words.count() + Lanes::LANES - 1) / Lanes::LANES;
  const uint64_t missing = rows * Lanes::LANES - words.count();
  const auto word = [&](uint64_t row) {
    const uint64_t index = row * Lanes::LANES + lane;
    if (index > missing + 1) return words[index - missing];
    if (index < missing) return 0u;
    const uint64_t inverted = 0xffffffffull << 8 * words.head();
    return words[index - missing] ^
           static_cast<uint32_t>(index == missing ? inverted : inverted >> 32);
  };
  const auto advance = [&](uint32_t value) {
    return shared.advance[0][value & 255] ^ shared.advance[1][value >> 8 & 255] ^
           shared.advance[2][value >> 16 & 255] ^ shared.advance[3][value >> 24];
  };
  value = 0;
  uint64_t row = 0;
  constexpr uint32_t kAhead = 4;  // loads in flight
  for (; row + kAhead < rows; row += kAhead) {
    uint32_t loaded[kAhead];
    LANES_UNROLL
    for (uint32_t k = 0; k < kAhead; ++k) loaded[k] = word(row + k);
    LANES_UNROLL
    for (uint32_t k = 0; k < kAhead; ++k) value = advance(value ^ loaded[k]);
  }
  for (; row < rows; ++row) {
    value ^= word(row);
    if (row + 1 < rows) value = advance(value);
  }
  value = multiply<POLYNOMIAL>(power<POLYNOMIAL>(Lanes::LANES - lane), value);
  value = lanes.exclusive_or(value);
  for (uint64_t i = bytes - words.tail(); i < bytes; ++i) value = add_byte(value, words.byte(i));
  return ~value;
}

/// Calls visit(index, word) for this lane's words, and fold() often enough that 64 bits hold sums
/// of 32-bit numbers times an index.
template <class Lanes, class Visit, class Fold>
LANES_FN void for_each(Lanes lanes, const Words& words, Visit visit, Fold fold) {
  constexpr uint64_t kRows = 1024, kAhead = 4;
  uint64_t index = lanes.lane();
  while (index < words.count()) {
    uint64_t row = 0;
    for (; row < kRows && index + (kAhead - 1) * Lanes::LANES < words.count(); row += kAhead) {
      uint32_t loaded[kAhead];
      LANES_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) loaded[k] = words[index + k * Lanes::LANES];
      LANES_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) visit(index + k * Lanes::LANES, loaded[k]);
      index += kAhead * Lanes::LANES;
    }
    for (; row < kRows && index < words.count(); ++row, index += Lanes::LANES) {
      visit(index, words[index]);
    }
    fold();
  }
}

template <class Lanes>
LANES_FN uint32_t adler32(Lanes lanes, uint64_t from, uint64_t bytes) {
  constexpr uint64_t kPrime = 65521;
  const Words words(from, bytes);
  uint64_t sum = 0, weighted = 0;  // of b_i, and of (i + head) b_i
  for_each(
      lanes, words,
      [&](uint64_t index, uint32_t word) {
        const uint32_t pairs = (word & 0x00ff00ff) + (word >> 8 & 0x00ff00ff);
        const uint32_t within = (word >> 8 & 255) + 2 * (word >> 16 & 255) + 3 * (word >> 24);
        const uint32_t of_word = (pairs & 0xffff) + (pairs >> 16);
        sum += of_word;
        weighted += 4 * index * of_word + within;
      },
      [&] { weighted %= kPrime; });
  sum = lanes.sum(sum);
  weighted = lanes.sum(weighted);
  for (uint64_t i = bytes - words.tail(); i < bytes; ++i) {
    sum += words.byte(i);
    weighted += (i + words.head()) % kPrime * words.byte(i);
  }
  // The second sum is bytes + sum of (bytes - i) b_i.
  sum %= kPrime;
  const uint64_t ends = (bytes + words.head()) % kPrime;
  const uint64_t second = bytes % kPrime + ends * sum + kPrime - weighted % kPrime;
  return static_cast<uint32_t>(second % kPrime << 16 | (1 + sum) % kPrime);
}

template <class Lanes>
LANES_FN uint32_t fletcher32(Lanes lanes, uint64_t from, uint64_t bytes) {
  constexpr uint64_t kModulus = 65535;
  const Words words(from, bytes);
  // Pairs are counted from the first word on, with one more byte before them if the first pair does
  // not begin at an even address.
  const uint32_t shift = words.head() % 2;
  const uint64_t skipped = (words.head() + shift) / 2;
  uint64_t sum = 0, weighted = 0;  // of v_i, and of their pairs' numbers times v_i
  const auto add = [&](uint64_t pair, uint32_t value) {
    sum += value;
    weighted += pair * value;
  };
  for_each(
      lanes, words,
      [&](uint64_t index, uint32_t word) {
        const uint32_t a = word & 255, b = word >> 8 & 255, c = word >> 16 & 255, d = word >> 24;
        const uint64_t pair = 2 * index;
        if (shift) {
          add(pair, a);
          add(pair + 1, b << 8 | c);
          add(pair + 2, d << 8);
        } else {
          add(pair, a << 8 | b);
          add(pair + 1, c << 8 | d);
        }
      },
      [&] { weighted %= kModulus; });
  sum = lanes.sum(sum);
  weighted = lanes.sum(weighted);
  for (uint64_t i = bytes - words.tail(); i < bytes; ++i) {
    add((i / 2 + skipped) % kModulus, words.byte(i) << (i % 2 ? 0 : 8));
  }
  if (sum == 0) return 0;
  // The second sum is that of (pairs - i / 2) v_i. Both are folded, so that 0 reads 65535.
  const uint64_t ends = ((bytes + 1) / 2 + skipped) % kModulus;
  const uint64_t second = ends * (sum % kModulus) + kModulus - weighted % kModulus;
  const uint64_t low = (sum - 1) % kModulus + 1;
  return static_cast<uint32_t>(((second + kModulus - 1) % kModulus + 1) << 16 | low);
}

// --- xxh64 ---

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5;

LANES_FN uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

LANES_FN uint64_t load_word(const uint8_t* from, uint32_t bytes) {
  if (bytes == 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    return *reinterpret_cast<const uint64_t*>(from);
  }
  uint64_t word = 0;
  for (uint32_t i = 0; i < bytes; ++i) word |= static_cast<uint64_t>(from[i]) << 8 * i;
  return word;
}

/// The part of xxh64 after the accumulators: `rest` is less than 32 bytes.
LANES_FN uint64_t finish(uint64_t hash, const uint8_t* from, uint32_t rest) {
  for (; rest >= 8; from += 8, rest -= 8) {
    hash ^= rotate(load_word(from, 8) * kPrime2, 31) * kPrime1;
    hash = rotate(hash, 27) * kPrime1 + kPrime4;
  }
  if (rest >= 4) {
    hash = rotate(hash ^ load_word(from, 4) * kPrime1, 23) * kPrime2 + kPrime3;
    from += 4, rest -= 4;
  }
  for (; rest; ++from, --rest) hash = rotate(hash ^ *from * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

template <class Lanes>
LANES_FN uint64_t xxh64(Lanes lanes, Shared& shared, uint64_t address, uint64_t bytes) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(address);
  const uint32_t lane = lanes.lane();
  const uint64_t words = bytes / 32 * 4;
  const auto load = [&](uint64_t tile, uint32_t first, uint32_t step) {
    uint64_t* to = shared.tiles[tile % 2];
    for (uint64_t i = first, word = tile * kTileWords + first; i < kTileWords && word < words;
         i += step, word += step) {
      to[i] = load_word(from + 8 * word, 8) * kPrime2;
    }
  };
  // The accumulators' warp loads nothing if there are others.
  constexpr uint32_t kIdle = Lanes::LANES > 32 ? 32 : 0;
  constexpr uint32_t kOwn = Lanes::LANES < 4 ? 4 / Lanes::LANES : 1;  // accumulators of a lane
  uint64_t own[kOwn];
  for (uint32_t i = 0; i < kOwn; ++i) {
    const uint32_t which = lane * kOwn + i;
    own[i] = which == 0 ? kPrime1 + kPrime2 : which == 1 ? kPrime2 : which == 2 ? 0 : 0 - kPrime1;
  }
  load(0, lane, Lanes::LANES);
  lanes.sync();
  const uint64_t tiles = (words + kTileWords - 1) / kTileWords;
  for (uint64_t tile = 0; tile < tiles; ++tile) {
    if (lane >= kIdle) load(tile + 1, lane - kIdle, Lanes::LANES - kIdle);
    if (lane < 4 / kOwn) {
      const uint64_t left = words - tile * kTileWords;
      const uint32_t count = left < kTileWords ? static_cast<uint32_t>(left) : kTileWords;
      const uint64_t* products = shared.tiles[tile % 2] + lane * kOwn;
      LANES_UNROLL_8
      for (uint32_t word = 0; word < count; word += 4) {
        for (uint32_t i = 0; i < kOwn; ++i) {
          own[i] = rotate(own[i] + products[word + i], 31) * kPrime1;
        }
      }
    }
    lanes.sync();
  }
  for (uint32_t i = 0; i < kOwn && lane < 4 / kOwn; ++i)
    shared.accumulators[lane * kOwn + i] = own[i];
  lanes.sync();
  const uint64_t* of = shared.accumulators;
  uint64_t hash = kPrime5;
  if (words) {
    hash = rotate(of[0], 1) + rotate(of[1], 7) + rotate(of[2], 12) + rotate(of[3], 18);
    for (uint32_t i = 0; i < 4; ++i) {
      hash = (hash ^ rotate(of[i] * kPrime2, 31) * kPrime1) * kPrime1 + kPrime4;
    }
  }
  lanes.sync();
  return finish(hash + bytes, from + 8 * words, static_cast<uint32_t>(bytes % 32));
}

/// The lowest 32 bits of the checksum; all lanes have it. No kind gives what nothing expects.
template <class Lanes>
LANES_FN uint32_t checksum(Lanes lanes, Shared& shared, const Check& check) {
  switch (check.kind) {
    case kCheckCrc32:
      return crc<kCrc32>(lanes, shared, check.from, check.bytes);
    case kCheckAdler32:
      return adler32(lanes, check.from, check.bytes);
    case kCheckXxh64:
      return static_cast<uint32_t>(xxh64(lanes, shared, check.from, check.bytes));
    case kCheckCrc32c:
      return crc<kCrc32c>(lanes, shared, check.from, check.bytes);
    case kCheckFletcher32:
      return fletcher32(lanes, check.from, check.bytes);
    default:
      return ~static_cast<uint32_t>(check.expected);
  }
}

}  // namespace checks
