#pragma once
// DEFLATE (RFC 1951), for raw streams.
//
//   for each block:  build the tables of its codes
//     repeat:  look the next bits up; a literal is kept in a register, a match is copied
//
// A stream is decoded by one warp, whose lanes all follow the bits, which is serial, and share the
// building of tables and the copying. The next word of the input is on its way while the bits
// before it are used. Codes of up to kLiteralBits (kDistanceBits) bits are found in one look-up,
// longer ones are counted out. Accepted is what zlib's inflate accepts. Every read and write is
// checked against the stream's bounds, and each turn of a loop uses up bits. The same code compiles
// for the host, with one lane, where it is tested.

#include <cstdint>

#include "lz.cuh"

namespace deflate {

using lz::Lanes;

constexpr uint32_t kMaxBits = 15;
constexpr uint32_t kLiteralBits = 10, kDistanceBits = 8;
constexpr uint32_t kLiterals = 288, kDistances = 32;

/// A prefix code. Entries of the table are symbol << 4 | bits, 0 where a longer code or none begins
/// with these bits.
template <uint32_t kBits, uint32_t kSymbols>
struct Code {
  uint16_t table[1 << kBits];
  uint16_t sorted[kSymbols];     // symbols by length, then by number
  uint16_t count[kMaxBits + 1];  // codes of each length
  uint16_t next[kMaxBits + 1];   // while it is built: where the next symbol of a length goes
};

/// What a warp keeps in shared memory.
struct Tables {
  Code<kLiteralBits, kLiterals> literals;
  Code<kDistanceBits, kDistances> distances;
  uint8_t lengths[kLiterals + kDistances];
};

#ifdef __CUDACC__
LZ_FN void add(uint16_t* counter) {
  // Pairs of counters lie in one word; neither overflows.
  uint32_t* word = reinterpret_cast<uint32_t*>(reinterpret_cast<uint64_t>(counter) & ~uint64_t(3));
  atomicAdd(word, reinterpret_cast<uint64_t>(counter) & 2 ? 1u << 16 : 1u);
}
LZ_FN uint32_t same(uint32_t value) { return __match_any_sync(0xFFFFFFFFu, value); }
LZ_FN uint32_t ones(uint32_t mask) { return __popc(mask); }
LZ_FN uint32_t reversed(uint32_t code, uint32_t bits) { return __brev(code) >> (32 - bits); }
#else
LZ_FN void add(uint16_t* counter) { ++*counter; }
LZ_FN uint32_t same(uint32_t) { return 1; }
LZ_FN uint32_t ones(uint32_t mask) { return __builtin_popcount(mask); }
LZ_FN uint32_t reversed(uint32_t code, uint32_t bits) {
  uint32_t result = 0;
  for (uint32_t bit = 0; bit < bits; ++bit) result |= (code >> bit & 1) << (bits - 1 - bit);
  return result;
}
#endif

/// Builds a code from the lengths of its symbols. False if they are no code. An incomplete code is
/// one only if it has a single symbol of one bit and `may_be_single`, or none at all.
template <uint32_t kBits, uint32_t kSymbols>
LZ_FN bool build(Code<kBits, kSymbols>& code, const uint8_t* lengths, uint32_t symbols,
                 bool may_be_single) {
  const uint32_t self = Lanes::self();
  for (uint32_t i = self; i < 1u << kBits; i += Lanes::kCount) code.table[i] = 0;
  for (uint32_t i = self; i <= kMaxBits; i += Lanes::kCount) code.count[i] = 0;
  Lanes::sync();
  for (uint32_t i = self; i < symbols; i += Lanes::kCount) {
    if (lengths[i]) add(&code.count[lengths[i]]);
  }
  Lanes::sync();
  int32_t left = 1;
  uint32_t used = 0, longest = 0;
  for (uint32_t bits = 1; bits <= kMaxBits; ++bits) {
    left = left * 2 - code.count[bits];
    if (left < 0) return false;
    if (self == 0) code.next[bits] = static_cast<uint16_t>(used);
    used += code.count[bits];
    if (code.count[bits]) longest = bits;
  }
  if (left > 0 && longest > 0 && !(may_be_single && longest == 1)) return false;
  Lanes::sync();
  for (uint32_t base = 0; base < symbols; base += Lanes::kCount) {
    const uint32_t symbol = base + self;
    const uint32_t bits = symbol < symbols ? lengths[symbol] : 0;
    const uint32_t peers = same(bits), before = ones(peers & ((1u << self) - 1));
    const uint32_t place = bits ? code.next[bits] + before : 0;
    Lanes::sync();
    if (bits) {
      code.sorted[place] = static_cast<uint16_t>(symbol);
      if (before == 0) code.next[bits] = static_cast<uint16_t>(place + ones(peers));
    }
    Lanes::sync();
  }
  // The first code of each length, and from it the entries of the table.
  uint32_t first = 0, index = 0;
  for (uint32_t bits = 1; bits <= kBits; ++bits) {
    first <<= 1;
    const uint32_t count = code.count[bits];
    const uint32_t copies = 1u << (kBits - bits);
    for (uint32_t i = self; i < count * copies; i += Lanes::kCount) {
      const uint32_t number = i / copies;
      const uint32_t start = reversed(first + number, bits);
      code.table[start | (i % copies) << bits] =
          static_cast<uint16_t>(code.sorted[index + number] << 4 | bits);
    }
    first += count;
    index += count;
  }
  Lanes::sync();
  return true;
}

/// The input, bit by bit from the lowest one.
struct Bits {
  const uint8_t* in;
  uint32_t left;  // bytes not yet in `buffer` or `ahead`
  uint64_t buffer;
  uint32_t count;  // bits in the buffer
  uint32_t ahead;  // the next whole word, loaded early
  bool has_ahead;

  LZ_FN static Bits open(const Stream& stream) {
    Bits bits{reinterpret_cast<const uint8_t*>(stream.from), stream.from_bytes, 0, 0, 0, false};
    while (bits.left > 0 && reinterpret_cast<uint64_t>(bits.in) % 4 != 0) bits.byte();
    bits.look_ahead();
    return bits;
  }

  LZ_FN void byte() {
    buffer |= uint64_t(*in++) << count;
    count += 8;
    --left;
  }

  LZ_FN void look_ahead() {
    has_ahead = left >= 4;
    if (has_ahead) {
      ahead = *reinterpret_cast<const uint32_t*>(in);
      in += 4;
      left -= 4;
    }
  }

  /// Afterwards there are at least 32 bits, unless the input ends before.
  LZ_FN void refill() {
    if (count > 32) return;
    if (has_ahead) {
      buffer |= uint64_t(ahead) << count;
      count += 32;
      look_ahead();
    } else {
      while (left > 0 && count <= 32) byte();
    }
  }

  LZ_FN uint32_t peek(uint32_t bits) const {
    return static_cast<uint32_t>(buffer) & ((1u << bits) - 1);
  }

  LZ_FN void drop(uint32_t bits) {
    buffer >>= bits;
    count -= bits;
  }

  /// Up to 16 bits; false if there are not as many. Call `refill` before every two of them.
  LZ_FN bool take(uint32_t bits, uint32_t& value) {
    if (bits > count) return false;
    value = peek(bits);
    drop(bits);
    return true;
  }

  /// Whole bytes that were not used.
  LZ_FN uint32_t unused() const { return left + (has_ahead ? 4 : 0) + count / 8; }
};

/// The next symbol, or kNone where no code begins like this. Needs 15 bits in the buffer unless the
/// input ends before.
constexpr uint32_t kNone = 0xFFFF;
template <uint32_t kBits, uint32_t kSymbols>
LZ_FN uint32_t symbol(const Code<kBits, kSymbols>& code, Bits& bits) {
  const uint32_t entry = code.table[bits.peek(kBits)];
  if (entry) {
    if ((entry & 15) > bits.count) return kNone;
    bits.drop(entry & 15);
    return entry >> 4;
  }
  uint32_t value = 0, first = 0, index = 0;
  for (uint32_t length = 1; length <= kMaxBits && length <= bits.count; ++length) {
    value = value << 1 | (static_cast<uint32_t>(bits.buffer >> (length - 1)) & 1);
    first <<= 1;
    const uint32_t count = code.count[length];
    if (value - first < count) {
      bits.drop(length);
      return code.sorted[index + value - first];
    }
    first += count;
    index += count;
  }
  return kNone;
}

/// Reads the codes of a dynamic block.
LZ_FN StreamError read_codes(Bits& bits, Tables& tables) {
  uint32_t literals, distances, lengths;
  bits.refill();
  if (!bits.take(5, literals) || !bits.take(5, distances) || !bits.take(4, lengths))
    return kStreamTruncated;
  literals += 257;
  distances += 1;
  lengths += 4;
  if (literals > 286 || distances > 30) return kStreamBadHeader;
  Lanes::sync();
  for (uint32_t i = Lanes::self(); i < 19; i += Lanes::kCount) tables.lengths[i] = 0;
  Lanes::sync();
  // In the order 16 17 18 0 8 7 9 6 10 5 11 4 12 3 13 2 14 1 15.
  for (uint32_t i = 0; i < lengths; ++i) {
    bits.refill();
    uint32_t length;
    if (!bits.take(3, length)) return kStreamTruncated;
    const uint32_t place = i < 3        ? 16 + i
                           : i == 3     ? 0
                           : i % 2 == 0 ? 8 + (i - 4) / 2
                                        : 7 - (i - 5) / 2;
    if (Lanes::self() == 0) tables.lengths[place] = static_cast<uint8_t>(length);
  }
  Lanes::sync();
  // Built in the place of the distances' code, which is not needed yet.
  if (!build(tables.distances, tables.lengths, 19, false)) return kStreamBadHeader;
  uint32_t have = 0, last = 0;
  const uint32_t all = literals + distances;
  while (have < all) {
    bits.refill();
    const uint32_t next = symbol(tables.distances, bits);
    if (next == kNone) return bits.count < kMaxBits ? kStreamTruncated : kStreamBadHeader;
    uint32_t times = 1, extra = 0;
    if (next == 16) {
      if (have == 0) return kStreamBadHeader;
      if (!bits.take(2, extra)) return kStreamTruncated;
      times = 3 + extra;
    } else if (next >= 17) {
      if (!bits.take(next == 17 ? 3 : 7, extra)) return kStreamTruncated;
      times = (next == 17 ? 3 : 11) + extra;
      last = 0;
    } else {
      last = next;
    }
    if (times > all - have) return kStreamBadHeader;
    for (uint32_t i = Lanes::self(); i < times; i += Lanes::kCount)
      tables.lengths[have + i] = static_cast<uint8_t>(last);
    have += times;
  }
  Lanes::sync();
  if (tables.lengths[256] == 0) return kStreamBadHeader;
  if (!build(tables.literals, tables.lengths, literals, true)) return kStreamBadHeader;
  if (!build(tables.distances, tables.lengths + literals, distances, true)) return kStreamBadHeader;
  return kStreamOk;
}

LZ_FN void fixed_codes(Tables& tables) {
  Lanes::sync();
  for (uint32_t i = Lanes::self(); i < kLiterals + kDistances; i += Lanes::kCount) {
    tables.lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : i < 288 ? 8 : 5;
  }
  Lanes::sync();
  build(tables.literals, tables.lengths, kLiterals, false);
  build(tables.distances, tables.lengths + kLiterals, kDistances, false);
}

/// Literals that were not written yet.
struct Pending {
  uint64_t bytes;
  uint32_t count;

  LZ_FN StreamError flush(lz::Cursor& at) {
    if (count > at.out_left) return kStreamTooLong;
    for (uint32_t i = Lanes::self(); i < count; i += Lanes::kCount)
      at.out[i] = static_cast<uint8_t>(bytes >> (8 * i));
    at.out += count;
    at.written += count;
    at.out_left -= count;
    bytes = 0;
    count = 0;
    return kStreamOk;
  }
};

LZ_FN StreamError codes(Bits& bits, Tables& tables, lz::Cursor& at) {
  Pending pending{0, 0};
  for (;;) {
    bits.refill();
    uint32_t next = symbol(tables.literals, bits);
    if (next < 256) {
      pending.bytes |= uint64_t(next) << (8 * pending.count);
      if (++pending.count == 8) {
        if (const StreamError error = pending.flush(at)) return error;
      }
      continue;
    }
    if (const StreamError error = pending.flush(at)) return error;
    if (next == 256) return kStreamOk;
    if (next >= 286)
      return next == kNone && bits.count < kMaxBits ? kStreamTruncated : kStreamBadCode;
    next -= 257;
    // 3..10, then four lengths for each further extra bit, then 258.
    uint32_t extra_bits = next < 8 || next == 28 ? 0 : next / 4 - 1, extra;
    uint32_t length = next < 8 ? next + 3 : next == 28 ? 258 : ((4 + next % 4) << extra_bits) + 3;
    if (!bits.take(extra_bits, extra)) return kStreamTruncated;
    length += extra;
    bits.refill();
    next = symbol(tables.distances, bits);
    if (next >= 30)
      return next == kNone && bits.count < kMaxBits ? kStreamTruncated : kStreamBadCode;
    extra_bits = next < 4 ? 0 : next / 2 - 1;
    uint32_t distance = next < 4 ? next + 1 : ((2 + next % 2) << extra_bits) + 1;
    if (!bits.take(extra_bits, extra)) return kStreamTruncated;
    distance += extra;
    if (const StreamError error = lz::match(at, distance, length)) return error;
  }
}

LZ_FN StreamError stored(Bits& bits, lz::Cursor& at) {
  bits.drop(bits.count % 8);
  bits.refill();
  uint32_t length, inverse;
  if (!bits.take(16, length) || !bits.take(16, inverse)) return kStreamTruncated;
  if ((length ^ inverse) != 0xFFFF) return kStreamBadHeader;
  // Back to bytes: what is in the buffer was read, but not used.
  at.in_left = bits.unused();
  at.in = bits.in + bits.left - at.in_left;
  if (const StreamError error = lz::literals(at, length)) return error;
  bits = Bits{at.in, at.in_left, 0, 0, 0, false};
  while (bits.left > 0 && reinterpret_cast<uint64_t>(bits.in) % 4 != 0) bits.byte();
  bits.look_ahead();
  return kStreamOk;
}

LZ_FN StreamError decode(const Stream& stream, Tables& tables) {
  Bits bits = Bits::open(stream);
  lz::Cursor at = lz::open(stream);
  uint32_t last, kind;
  do {
    bits.refill();
    if (!bits.take(1, last) || !bits.take(2, kind)) return kStreamTruncated;
    StreamError error = kStreamBadHeader;
    if (kind == 0) {
      error = stored(bits, at);
    } else if (kind < 3) {
      error = kStreamOk;
      if (kind == 1) {
        fixed_codes(tables);
      } else {
        error = read_codes(bits, tables);
      }
      if (!error) error = codes(bits, tables, at);
    }
    if (error) return error;
  } while (!last);
  if (at.out_left > 0) return kStreamTooShort;
  return bits.unused() > 0 ? kStreamTrailing : kStreamOk;
}

}  // namespace deflate
