#pragma once
// Decoders for byte-oriented LZ formats: LZ4 blocks, BloscLZ and Snappy.
//
//   repeat:  read a token
//            literals: copy bytes of the input
//            match:    copy bytes that were written before, possibly overlapping what is being
//            written
//
// A stream is decoded by one warp. All lanes read the tokens, which costs no more than one of them
// would, and copies are spread over the lanes. Every read and write is checked against the stream's
// bounds, and every turn of a loop uses up input or output, so that no input leads astray. The same
// code compiles for the host, with one lane, where it is tested.

#include <cstdint>

#include "streams.cuh"

#ifdef __CUDACC__
#define LZ_FN __device__ inline
#else
#define LZ_FN inline
#endif

namespace lz {

#ifdef __CUDACC__
struct Lanes {
  static constexpr uint32_t kCount = 32;
  LZ_FN static uint32_t self() { return threadIdx.x % 32; }
  LZ_FN static void sync() { __syncwarp(); }
};
#else
struct Lanes {
  static constexpr uint32_t kCount = 1;
  LZ_FN static uint32_t self() { return 0; }
  LZ_FN static void sync() {}
};
#endif

/// The state of a stream: what is left to read and to write.
struct Cursor {
  const uint8_t* in;
  uint32_t in_left;
  uint8_t* out;  // where the next byte goes
  uint32_t written;
  uint32_t out_left;

  LZ_FN uint32_t next() {
    --in_left;
    return *in++;
  }
};

/// Copies bytes that do not overlap.
LZ_FN void copy(const uint8_t* from, uint8_t* to, uint32_t bytes) {
#ifdef __CUDACC__
  const uint64_t source = reinterpret_cast<uint64_t>(from), target = reinterpret_cast<uint64_t>(to);
  if (bytes >= 256) {
    const uint32_t head = static_cast<uint32_t>(-target & 15);
    if (Lanes::self() < head) to[Lanes::self()] = from[Lanes::self()];
    const uint32_t wide = (bytes - head) / 16, tail = head + wide * 16;
    if (((source - target) & 15) == 0) {
      for (uint32_t i = Lanes::self(); i < wide; i += 32) {
        reinterpret_cast<uint4*>(to + head)[i] = reinterpret_cast<const uint4*>(from + head)[i];
      }
    } else {
      // Whole words around the source's bytes; the first and the last may hold bytes beyond them of
      // the same word, which belongs to the same allocation.
      const uint32_t shift = static_cast<uint32_t>((source + head) & 3) * 8;
      const uint32_t* words = reinterpret_cast<const uint32_t*>((source + head) & ~uint64_t(3));
      for (uint32_t i = Lanes::self(); i < wide; i += 32) {
        const uint32_t a = words[4 * i], b = words[4 * i + 1], c = words[4 * i + 2],
                       d = words[4 * i + 3];
        const uint32_t e = shift ? words[4 * i + 4] : 0;
        reinterpret_cast<uint4*>(to + head)[i] =
            make_uint4(__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift),
                       __funnelshift_r(c, d, shift), __funnelshift_r(d, e, shift));
      }
    }
    if (tail + Lanes::self() < bytes) to[tail + Lanes::self()] = from[tail + Lanes::self()];
    return;
  }
#endif
  for (uint32_t i = Lanes::self(); i < bytes; i += Lanes::kCount) to[i] = from[i];
}

/// Literals; false if there are not as many, or no room.
LZ_FN StreamError literals(Cursor& at, uint32_t bytes) {
  if (bytes > at.in_left) return kStreamTruncated;
  if (bytes > at.out_left) return kStreamTooLong;
  copy(at.in, at.out, bytes);
  at.in += bytes;
  at.in_left -= bytes;
  at.out += bytes;
  at.written += bytes;
  at.out_left -= bytes;
  return kStreamOk;
}

/// A match `distance` bytes back.
LZ_FN StreamError match(Cursor& at, uint32_t distance, uint32_t bytes) {
  if (distance == 0 || distance > at.written) return kStreamBadOffset;
  if (bytes > at.out_left) return kStreamTooLong;
  // What was written before becomes visible to all lanes.
  Lanes::sync();
  const uint8_t* from = at.out - distance;
  uint8_t* to = at.out;
  if (distance >= bytes) {
    copy(from, to, bytes);
  } else if (distance >= Lanes::kCount) {
    // Each round reads what the rounds before have written.
    for (uint32_t i = Lanes::self(); i - Lanes::self() < bytes; i += Lanes::kCount) {
      if (i < bytes) to[i] = from[i];
      Lanes::sync();
    }
  } else {
    // A pattern; only its bytes before the match are read.
    const uint32_t step = Lanes::kCount % distance;
    uint32_t place = Lanes::self() % distance;
    uint32_t i = Lanes::self();
#ifdef __CUDACC__
    if ((distance & (distance - 1)) == 0 && distance <= 8 && bytes >= 128) {
      const uint32_t head = static_cast<uint32_t>(-reinterpret_cast<uint64_t>(to) & 7);
      uint64_t pattern = 0;
      for (uint32_t byte = 0; byte < 8; ++byte) {
        pattern |= uint64_t(from[(head + byte) & (distance - 1)]) << (8 * byte);
      }
      if (i < head) to[i] = from[i & (distance - 1)];
      const uint32_t words = (bytes - head) / 8, tail = head + words * 8;
      for (uint32_t word = Lanes::self(); word < words; word += 32)
        reinterpret_cast<uint64_t*>(to + head)[word] = pattern;
      if (tail + i < bytes) to[tail + i] = from[(tail + i) & (distance - 1)];
      i = bytes;
    }
#endif
    for (; i < bytes; i += Lanes::kCount) {
      to[i] = from[place];
      place += step;
      if (place >= distance) place -= distance;
    }
  }
  at.out += bytes;
  at.written += bytes;
  at.out_left -= bytes;
  return kStreamOk;
}

LZ_FN Cursor open(const Stream& stream) {
  return {reinterpret_cast<const uint8_t*>(stream.from), stream.from_bytes,
          reinterpret_cast<uint8_t*>(stream.to), 0, stream.to_bytes};
}

/// A length that goes on in further bytes as long as these are 255. Bounded by the input: no more
/// than 255 a byte.
LZ_FN StreamError extended(Cursor& at, uint64_t& length) {
  uint32_t byte;
  do {
    if (at.in_left == 0) return kStreamTruncated;
    byte = at.next();
    length += byte;
  } while (byte == 255);
  return length > 0xFFFFFFFFu ? kStreamTooLong : kStreamOk;
}

/// LZ4's block format, with the rules for the end that LZ4_decompress_safe has.
LZ_FN StreamError decode_lz4(const Stream& stream) {
  Cursor at = open(stream);
  for (;;) {
    if (at.in_left == 0) return kStreamTruncated;
    const uint32_t token = at.next();
    uint64_t length = token >> 4;
    if (length == 15) {
      if (const StreamError error = extended(at, length)) return error;
    }
    // The last five bytes are literals, and the last match starts twelve bytes before the end at
    // the latest.
    const bool last = length + 12 > at.out_left || length + 8 > at.in_left;
    if (length > at.in_left) return kStreamTruncated;
    if (length > at.out_left) return kStreamTooLong;
    if (const StreamError error = literals(at, static_cast<uint32_t>(length))) return error;
    if (last) {
      if (at.in_left != 0) return at.out_left == 0 ? kStreamTrailing : kStreamBadCode;
      return at.out_left == 0 ? kStreamOk : kStreamTooShort;
    }
    const uint32_t low = at.next();
    const uint32_t distance = low | at.next() << 8;
    length = token & 15;
    if (length == 15) {
      if (const StreamError error = extended(at, length)) return error;
    }
    length += 4;
    if (length + 5 > at.out_left) return kStreamTooLong;
    if (const StreamError error = match(at, distance, static_cast<uint32_t>(length))) return error;
  }
}

/// BloscLZ, as blosclz_decompress of c-blosc 1.21 reads it.
LZ_FN StreamError decode_blosclz(const Stream& stream) {
  constexpr uint32_t kFarDistance = 8191;
  Cursor at = open(stream);
  if (at.in_left == 0) return kStreamTruncated;
  uint32_t control = at.next() & 31;
  for (;;) {
    if (control >= 32) {
      uint64_t length = (control >> 5) - 1;
      uint32_t distance = (control & 31) << 8;
      if (length == 6) {
        uint32_t byte;
        do {
          if (at.in_left < 2) return kStreamTruncated;
          byte = at.next();
          length += byte;
        } while (byte == 255);
      } else if (at.in_left < 2) {
        return kStreamTruncated;
      }
      const uint32_t low = at.next();
      length += 3;
      if (low == 255 && distance == 31 << 8) {
        if (at.in_left < 2) return kStreamTruncated;
        const uint32_t high = at.next();
        distance = (high << 8 | at.next()) + kFarDistance;
      } else {
        distance += low;
      }
      // A match is never the end: the reference leaves it out then, and finds the output too short.
      if (at.in_left == 0) return kStreamTooShort;
      control = at.next();
      if (length > at.out_left) return kStreamTooLong;
      if (const StreamError error = match(at, distance + 1, static_cast<uint32_t>(length)))
        return error;
    } else {
      if (const StreamError error = literals(at, control + 1)) return error;
      if (at.in_left == 0) return at.out_left == 0 ? kStreamOk : kStreamTooShort;
      control = at.next();
    }
  }
}

/// Snappy's raw format.
LZ_FN StreamError decode_snappy(const Stream& stream) {
  Cursor at = open(stream);
  uint64_t declared = 0;
  for (uint32_t shift = 0;; shift += 7) {
    if (at.in_left == 0) return kStreamTruncated;
    const uint32_t byte = at.next();
    if (shift > 28) return kStreamBadHeader;
    declared |= uint64_t(byte & 127) << shift;
    if (byte < 128) break;
  }
  if (declared != stream.to_bytes) return kStreamBadHeader;
  while (at.in_left > 0) {
    const uint32_t tag = at.next();
    StreamError error;
    if ((tag & 3) == 0) {
      uint64_t length = tag >> 2;
      if (length >= 60) {
        const uint32_t bytes = static_cast<uint32_t>(length) - 59;
        if (at.in_left < bytes) return kStreamTruncated;
        length = 0;
        for (uint32_t i = 0; i < bytes; ++i) length |= uint64_t(at.next()) << (8 * i);
      }
      if (length + 1 > at.in_left) return kStreamTruncated;
      error = literals(at, static_cast<uint32_t>(length) + 1);
    } else {
      const uint32_t bytes = (tag & 3) == 1 ? 1 : (tag & 3) == 2 ? 2 : 4;
      if (at.in_left < bytes) return kStreamTruncated;
      uint32_t distance = 0;
      for (uint32_t i = 0; i < bytes; ++i) distance |= at.next() << (8 * i);
      uint32_t length = (tag >> 2) + 1;
      if (bytes == 1) {
        length = (tag >> 2 & 7) + 4;
        distance |= tag >> 5 << 8;
      }
      error = match(at, distance, length);
    }
    if (error) return error;
  }
  return at.out_left == 0 ? kStreamOk : kStreamTooShort;
}

/// Bytes as they are.
LZ_FN StreamError decode_stored(const Stream& stream) {
  if (stream.from_bytes != stream.to_bytes) return kStreamTooShort;
  Cursor at = open(stream);
  return literals(at, stream.to_bytes);
}

}  // namespace lz
