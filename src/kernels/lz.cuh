#pragma once

// Decoders of byte-oriented LZ formats: LZ4 blocks, BloscLZ and raw Snappy, one warp per stream.
//
//   until the encoded bytes end:
//     parse one element                       every lane alike, from a window of the encoded bytes
//     literals:  ring[at + lane] = window[position + lane]
//     match:     ring[at + lane] = ring[at - offset + lane % offset]
//     each FLUSH_BYTES: ring -> decoded bytes, in 16-byte stores
//
// The time goes into the chain of dependent accesses of short elements, so all of them stay in
// shared memory: `window` holds the next encoded bytes, loaded ahead in registers, `ring` the last
// decoded ones. Only matches farther back than NEAR_BYTES read the decoded bytes themselves.
//
// Whatever the encoded bytes say, no decoder reads outside `from` or writes outside `to`, and each
// turn of a loop uses up encoded bytes or adds decoded ones, so each ends.
//
// `Warp` is the machine: CUDA's (lz.cu), or a plain loop over 32 lanes for the tests on the host.
// Code outside `Warp::each` runs on every lane with the same values; inside, lanes run in any order
// and read nothing that another lane writes.

#include <cstdint>

#include "streams.cuh"

#ifdef __CUDACC__
#define LZ_INLINE __device__ __forceinline__
#else
#define LZ_INLINE inline
#endif

namespace lz {

constexpr uint32_t RING_BYTES = 4096;   // decoded bytes kept in shared memory
constexpr uint32_t PIECE_BYTES = 512;   // the most that is added to the ring at once
constexpr uint32_t FLUSH_BYTES = 1024;  // decoded bytes that wait in the ring to be written
constexpr uint32_t HALF_BYTES = 256;    // encoded bytes loaded at once; the window holds two halves
constexpr uint32_t WINDOW_BYTES = 2 * HALF_BYTES;
constexpr uint32_t WIDE_BYTES = 16;         // one store of decoded bytes
constexpr uint32_t MAX_BYTES = 0x7fffffff;  // of a stream on either side: sums fit 32 bits

// The farthest match whose source the ring still holds, with the word that its first byte is in,
// after the piece it goes to is written.
constexpr uint32_t NEAR_BYTES = RING_BYTES - PIECE_BYTES - 4;
static_assert(FLUSH_BYTES + PIECE_BYTES <= NEAR_BYTES, "a far match reads bytes that are written");
static_assert(HALF_BYTES <= PIECE_BYTES && 2 * PIECE_BYTES <= NEAR_BYTES, "pieces fit the ring");

// Shared memory of one warp.
struct alignas(WIDE_BYTES) Scratch {
  uint8_t bytes[RING_BYTES + WINDOW_BYTES];  // the ring, then the window
};

struct alignas(WIDE_BYTES) Wide {
  uint32_t words[4];
};

LZ_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// One access of sizeof(T) bytes at an aligned address.
template <class T>
LZ_INLINE T load(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}

template <class T>
LZ_INLINE void store(uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

// The 4 bytes that start `shift` bits into two words.
LZ_INLINE uint32_t word_across(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift);
}

// value % divisor below 64, sooner than in integers: half a unit more than the quotient is never so
// close to a whole number that the approximate division matters.
LZ_INLINE uint32_t small_remainder(uint32_t value, uint32_t divisor) {
  const float middle = static_cast<float>(value) + 0.5f;
#ifdef __CUDA_ARCH__
  const float quotient = __fdividef(middle, static_cast<float>(divisor));
#else
  const float quotient = middle / static_cast<float>(divisor);
#endif
  return value - static_cast<uint32_t>(quotient) * divisor;
}

// The encoded bytes. Positions count from the 8-byte boundary at or below the first byte.
//
// The window holds [half_, half_ + WINDOW_BYTES); after `refill`, `at` lies in its first half, so
// HALF_BYTES from there can be read, and one byte more may be taken before. Bytes past `end` read
// as 0.
template <class Warp>
class Input {
 public:
  LZ_INLINE Input(const Stream& stream, uint8_t* window)
      : window_(window),
        from_(reinterpret_cast<const uint8_t*>(stream.from & ~uint64_t{7})),
        begin_(static_cast<uint32_t>(stream.from & 7)),
        end_(begin_ + stream.from_bytes),
        half_(0),
        at(begin_) {
    load_ahead(0);
    store_ahead(0);
    load_ahead(HALF_BYTES);
    store_ahead(HALF_BYTES);
    load_ahead(WINDOW_BYTES);
    Warp::sync();
  }

  LZ_INLINE uint32_t left() const { return end_ - at; }
  LZ_INLINE uint32_t peek(uint32_t ahead) const {
    return window_[(at + ahead) & (WINDOW_BYTES - 1)];
  }

  // The 4 bytes at `at + ahead`, little-endian.
  LZ_INLINE uint32_t peek_word(uint32_t ahead) const {
    const uint32_t position = at + ahead;
    const uint32_t low = load<uint32_t>(window_ + (position & (WINDOW_BYTES - 4)));
    const uint32_t high = load<uint32_t>(window_ + ((position + 4) & (WINDOW_BYTES - 4)));
    return word_across(low, high, (position & 3) * 8);
  }

  // The caller has checked `left`.
  LZ_INLINE uint32_t next() { return window_[at++ & (WINDOW_BYTES - 1)]; }

  // Little-endian number of 1 to 4 bytes; the caller has checked `left`.
  LZ_INLINE uint32_t next_number(uint32_t bytes) {
    uint32_t number = 0;
    for (uint32_t i = 0; i < bytes; ++i) number |= next() << 8 * i;
    return number;
  }

  // Adds a run of bytes, up to and with the first that is not 255, to `length`.
  LZ_INLINE uint32_t extend(uint32_t& length, uint32_t most) {
    uint32_t run;
    do {
      const uint32_t bytes = left();
      run = Warp::leading([&](uint32_t lane) { return lane < bytes && peek(lane) == 255; });
      length += 255 * run;
      at += run;
      refill();
      if (length > most) return kStreamTooLong;
    } while (run == Warp::LANES);
    if (left() == 0) return kStreamTruncated;
    length += next();
    refill();
    return length > most ? kStreamTooLong : kStreamOk;
  }

  LZ_INLINE void refill() {
    while (at - half_ >= HALF_BYTES) {
      Warp::sync();
      store_ahead(half_);
      half_ += HALF_BYTES;
      load_ahead(half_ + WINDOW_BYTES);
      Warp::sync();
    }
  }

 private:
  static constexpr uint32_t WORD_BYTES = HALF_BYTES / Warp::LANES;
  static_assert(WORD_BYTES == sizeof(uint64_t), "a lane loads one word of each half");

  // Starts to load the half at `position`; it is waited for in `store_ahead`, HALF_BYTES later.
  LZ_INLINE void load_ahead(uint32_t position) {
    Warp::each([&](uint32_t lane) {
      const uint32_t first = position + lane * WORD_BYTES;
      uint64_t word = 0;
      if (first >= begin_ && first < end_ && end_ - first >= WORD_BYTES) {
        word = load<uint64_t>(from_ + first);
      } else if (first < end_) {
        for (uint32_t i = 0; i < WORD_BYTES; ++i) {
          if (first + i >= begin_ && first + i < end_) {
            word |= static_cast<uint64_t>(from_[first + i]) << 8 * i;
          }
        }
      }
      ahead_[lane] = word;
    });
  }

  LZ_INLINE void store_ahead(uint32_t position) {
    Warp::each([&](uint32_t lane) {
      store(window_ + (position & (WINDOW_BYTES - 1)) + lane * WORD_BYTES, ahead_[lane]);
    });
  }

  uint8_t* window_;
  const uint8_t* from_;
  uint32_t begin_, end_, half_;
  typename Warp::template PerLane<uint64_t> ahead_;

 public:
  uint32_t at;
};

// The decoded bytes. Positions count from the 16-byte boundary at or below the first byte, so the
// ring and the memory that it is written to are aligned alike.
template <class Warp>
class Output {
 public:
  LZ_INLINE Output(const Stream& stream, uint8_t* ring)
      : ring_(ring),
        to_(reinterpret_cast<uint8_t*>(stream.to & ~uint64_t{WIDE_BYTES - 1})),
        begin_(static_cast<uint32_t>(stream.to & (WIDE_BYTES - 1))),
        end_(begin_ + stream.to_bytes),
        flushed_(begin_),
        at(begin_) {}

  LZ_INLINE uint32_t done() const { return at - begin_; }
  LZ_INLINE uint32_t room() const { return end_ - at; }
  LZ_INLINE uint32_t complete() const { return room() == 0 ? kStreamOk : kStreamTooShort; }

  // Appends encoded bytes; the caller has checked `left` and `room`.
  LZ_INLINE void literals(Input<Warp>& in, uint32_t length) {
    while (length > 0) {
      const uint32_t piece = smaller(length, HALF_BYTES);
      append(RING_BYTES, WINDOW_BYTES, in.at, piece);
      in.at += piece;
      length -= piece;
      in.refill();
      settle();
    }
  }

  // Appends decoded bytes again; the caller has checked 1 <= offset <= done() and `room`.
  LZ_INLINE void match(uint32_t offset, uint32_t length) {
    if (offset > NEAR_BYTES) return far_match(offset, length);
    const uint32_t first = smaller(length, Warp::LANES);
    Warp::sync();
    Warp::each([&](uint32_t lane) {
      if (lane < first) {
        const uint32_t back = first > offset ? small_remainder(lane, offset) : lane;
        ring_[slot(at + lane)] = ring_[slot(at - offset + back)];
      }
    });
    at += first;
    length -= first;
    settle();
    if (length == 0) return;
    // What was copied repeats with `offset`, so any multiple of it that lies behind will do, and
    // the longer it is the more is copied at once.
    uint32_t period = offset;
    if (offset < Warp::LANES) period = (offset + Warp::LANES) / offset * offset;
    while (length > 0) {
      const uint32_t piece = smaller(length, smaller(period, PIECE_BYTES));
      append(0, RING_BYTES, at - period, piece);
      length -= piece;
      settle();
      if (piece == period) period *= 2;
    }
  }

  // Literals and a match, together no more than there are lanes, in one step; the caller has
  // checked both as above.
  LZ_INLINE void sequence(const Input<Warp>& in, uint32_t literals, uint32_t offset,
                          uint32_t length) {
    Warp::sync();
    Warp::each([&](uint32_t lane) {
      // Without branches on the lane: lanes past the end read some byte that no lane writes, and
      // drop it, as all do where the source has left the ring.
      uint32_t back = (lane - literals) % 64;
      if (length > offset) back = small_remainder(back, offset);
      // Counted from `at`; bytes that this step adds are still in the window.
      const uint32_t source = lane < literals ? lane : literals - offset + back;
      const bool encoded = static_cast<int32_t>(source) >= 0;
      const bool far = offset > NEAR_BYTES;
      uint8_t byte = ring_[encoded || far ? RING_BYTES + ((in.at + source) & (WINDOW_BYTES - 1))
                                          : slot(at + source)];
      if (far && !encoded) byte = to_[at + source];
      if (lane < literals + length) ring_[slot(at + lane)] = byte;
    });
    at += literals + length;
    settle();
  }

  // Writes what waits in the ring before `until`, which is WIDE_BYTES-aligned or the end.
  LZ_INLINE void flush(uint32_t until) {
    const uint32_t aligned = (flushed_ + WIDE_BYTES - 1) & ~(WIDE_BYTES - 1);
    const uint32_t first = smaller(aligned, until);
    const uint32_t last = aligned < until ? until & ~(WIDE_BYTES - 1) : until;
    Warp::sync();
    Warp::each([&](uint32_t lane) {
      if (flushed_ + lane < first) to_[flushed_ + lane] = ring_[slot(flushed_ + lane)];
      for (uint32_t i = first + lane * WIDE_BYTES; i < last; i += Warp::LANES * WIDE_BYTES) {
        store(to_ + i, load<Wide>(ring_ + slot(i)));
      }
      if (last + lane < until) to_[last + lane] = ring_[slot(last + lane)];
    });
    flushed_ = until;
  }

  LZ_INLINE void flush() { flush(end_); }

 private:
  static LZ_INLINE uint32_t slot(uint32_t position) { return position & (RING_BYTES - 1); }

  LZ_INLINE void settle() {
    if (at - flushed_ >= FLUSH_BYTES) flush(at & ~(WIDE_BYTES - 1));
  }

  // Appends `length` bytes from `position` of a ring of `size` bytes that starts at `ring_ +
  // start`. They are complete, and not overwritten by this.
  LZ_INLINE void append(uint32_t start, uint32_t size, uint32_t position, uint32_t length) {
    const uint8_t* from = ring_ + start;
    const uint32_t mask = size - 1;
    Warp::sync();
    if (length <= Warp::LANES) {
      Warp::each([&](uint32_t lane) {
        if (lane < length) ring_[slot(at + lane)] = from[(position + lane) & mask];
      });
    } else {
      const uint32_t head = -at & 3;
      const uint32_t shift = ((position + head) & 3) * 8;
      // Words as long as none is read that reaches beyond the source, where other lanes may write.
      const uint32_t words = (length - head - (-(position + head) & 3)) / 4;
      const uint32_t tail = head + 4 * words;
      Warp::each([&](uint32_t lane) {
        if (lane < head) ring_[slot(at + lane)] = from[(position + lane) & mask];
        for (uint32_t word = lane; word < words; word += Warp::LANES) {
          const uint32_t first = position + head + 4 * word;
          const uint32_t low = load<uint32_t>(from + (first & mask & ~3u));
          const uint32_t high = load<uint32_t>(from + ((first + 3) & mask & ~3u));
          store(ring_ + slot(at + head + 4 * word), word_across(low, high, shift));
        }
        if (tail + lane < length) {
          ring_[slot(at + tail + lane)] = from[(position + tail + lane) & mask];
        }
      });
    }
    at += length;
  }

  // A match whose source has left the ring: it was written, and is farther back than a piece is
  // long.
  LZ_INLINE void far_match(uint32_t offset, uint32_t length) {
    while (length > 0) {
      const uint32_t piece = smaller(length, PIECE_BYTES);
      Warp::sync();
      Warp::each([&](uint32_t lane) {
#pragma unroll 4
        for (uint32_t i = lane; i < piece; i += Warp::LANES) {
          ring_[slot(at + i)] = to_[at - offset + i];
        }
      });
      at += piece;
      length -= piece;
      settle();
    }
  }

  uint8_t* ring_;
  uint8_t* to_;
  uint32_t begin_, end_, flushed_;

 public:
  uint32_t at;
};

// LZ4 block format (lz4/doc/lz4_Block_format.md): accepts what LZ4_decompress_safe of 1.10 accepts
// for an output of exactly this size, with its rules for the end of a block, but for offset 0: that
// is an error here, while LZ4 decodes it to bytes without meaning.
struct Lz4 {
  static constexpr uint32_t LONG = 15;           // a length that goes on in further bytes
  static constexpr uint32_t MIN_MATCH = 4;       // the shortest match
  static constexpr uint32_t LAST_LITERALS = 5;   // bytes after the last match
  static constexpr uint32_t LAST_SEQUENCE = 12;  // bytes after the last literals that have a match
  static constexpr uint32_t SHORT_ENCODED =
      LONG - 1 + 2 + 1;  // of short lengths, up to the next token
  static constexpr uint32_t SHORT_DECODED = 2 * (LONG - 1) + MIN_MATCH;

  template <class Warp>
  static LZ_INLINE uint32_t decode(Input<Warp>& in, Output<Warp>& out) {
    static_assert(SHORT_DECODED <= Warp::LANES, "a sequence of short lengths is one step");
    if (in.left() == 0) return kStreamTruncated;
    uint32_t token = in.next();
    while (true) {
      uint32_t literals = token >> 4, length = token & 15;
      if (literals < LONG && length < LONG && in.left() >= SHORT_ENCODED &&
          out.room() >= SHORT_DECODED + LAST_SEQUENCE) {
        const uint32_t word = in.peek_word(literals);  // the offset and the next token
        const uint32_t offset = word & 0xffff;
        if (offset - 1 < out.done() + literals) {
          out.sequence(in, literals, offset, length + MIN_MATCH);
          in.at += literals + 3;
          in.refill();
          token = word >> 16 & 0xff;
          continue;
        }
      }
      if (literals == LONG) {
        if (uint32_t error = in.extend(literals, out.room())) return error;
      }
      if (literals > in.left()) return kStreamTruncated;
      if (literals > out.room()) return kStreamTooLong;
      out.literals(in, literals);
      if (in.left() == 0) return out.complete();
      if (out.room() < LAST_SEQUENCE) return kStreamTooLong;
      if (in.left() < 2) return kStreamTruncated;
      const uint32_t offset = in.next_number(2);
      if (length == LONG) {
        if (uint32_t error = in.extend(length, out.room())) return error;
      }
      length += MIN_MATCH;
      if (length > out.room() - LAST_LITERALS) return kStreamTooLong;
      if (offset == 0 || offset > out.done()) return kStreamBadOffset;
      out.match(offset, length);
      in.refill();
      if (in.left() == 0) return kStreamTruncated;
      token = in.next();
    }
  }
};

// BloscLZ (c-blosc/blosc/blosclz.c, blosclz_decompress): accepts what it accepts for an output of
// exactly this size. The first byte starts literals whatever its upper bits say, and literals end a
// stream.
struct BloscLz {
  static constexpr uint32_t FAR = 8191;  // the offset, less one, at which a 16-bit number follows

  template <class Warp>
  static LZ_INLINE uint32_t decode(Input<Warp>& in, Output<Warp>& out) {
    if (in.left() == 0) return kStreamTruncated;
    uint32_t control = in.next() & 31;
    while (true) {
      if (control < 32) {
        const uint32_t length = control + 1;
        if (length > in.left()) return kStreamTruncated;
        if (length > out.room()) return kStreamTooLong;
        out.literals(in, length);
        if (in.left() == 0) return out.complete();
      } else {
        uint32_t length = (control >> 5) + 2;
        if (control >> 5 == 7) {
          if (uint32_t error = in.extend(length, out.room())) return error;
        }
        if (in.left() == 0) return kStreamTruncated;
        uint32_t offset = (control & 31) << 8 | in.next();
        if (offset == FAR) {
          if (in.left() < 2) return kStreamTruncated;
          offset += in.next() << 8;
          offset += in.next();
        }
        offset += 1;
        if (in.left() == 0) return kStreamTruncated;
        if (length > out.room()) return kStreamTooLong;
        if (offset > out.done()) return kStreamBadOffset;
        out.match(offset, length);
        in.refill();
      }
      control = in.next();
    }
  }
};

// Raw Snappy (google/snappy/format_description.txt), with the decoded size in front.
struct Snappy {
  static constexpr uint32_t LONG = 60;  // literals whose length follows in 1 to 4 bytes

  template <class Warp>
  static LZ_INLINE uint32_t decode(Input<Warp>& in, Output<Warp>& out) {
    uint32_t size = 0, byte = 128;
    for (uint32_t shift = 0; byte >= 128; shift += 7) {
      if (in.left() == 0) return kStreamTruncated;
      byte = in.next();
      if (shift == 28 && byte > 15) return kStreamBadHeader;
      size |= (byte & 127) << shift;
    }
    if (size != out.room()) return kStreamBadHeader;
    while (in.left() > 0) {
      const uint32_t tag = in.next();
      if ((tag & 3) == 0) {
        uint32_t length = tag >> 2;  // less one
        if (length >= LONG) {
          const uint32_t bytes = length - LONG + 1;
          if (in.left() < bytes) return kStreamTruncated;
          length = in.next_number(bytes);
          in.refill();
        }
        if (length >= in.left()) return kStreamTruncated;
        if (length >= out.room()) return kStreamTooLong;
        out.literals(in, length + 1);
      } else {
        const uint32_t bytes = 1u << ((tag & 3) - 1);
        if (in.left() < bytes) return kStreamTruncated;
        uint32_t offset = in.next_number(bytes), length = (tag >> 2) + 1;
        if (bytes == 1) {
          offset |= tag >> 5 << 8;
          length = (tag >> 2 & 7) + 4;
        }
        if (offset == 0 || offset > out.done()) return kStreamBadOffset;
        if (length > out.room()) return kStreamTooLong;
        out.match(offset, length);
        in.refill();
      }
    }
    return out.complete();
  }
};

// Decodes one stream; returns its StreamError. After an error part of `to` may have been written.
template <class Format, class Warp>
LZ_INLINE uint32_t decode(const Stream& stream, Scratch& scratch) {
  if (stream.from_bytes > MAX_BYTES || stream.to_bytes > MAX_BYTES) return kStreamTooLong;
  Input<Warp> in(stream, scratch.bytes + RING_BYTES);
  Output<Warp> out(stream, scratch.bytes);
  const uint32_t error = Format::decode(in, out);
  if (error == kStreamOk) out.flush();
  return error;
}

// Copies a stream that is stored as it is; returns its StreamError.
//
// With equal alignment in 16-byte accesses, else in 4-byte ones with two loads each, of which the
// second finds its line in the cache.
template <class Warp>
LZ_INLINE uint32_t copy_stored(const Stream& stream) {
  if (stream.from_bytes < stream.to_bytes) return kStreamTruncated;
  if (stream.from_bytes > stream.to_bytes) return kStreamTrailing;
  const uint8_t* __restrict__ from = reinterpret_cast<const uint8_t*>(stream.from);
  uint8_t* __restrict__ to = reinterpret_cast<uint8_t*>(stream.to);
  const uint64_t bytes = stream.to_bytes;
  uint64_t body = 0,
           body_end = 0;  // the part in wide accesses; the rest is at most 15 bytes each side
  if (((stream.from ^ stream.to) & (WIDE_BYTES - 1)) == 0) {
    body = -stream.to & (WIDE_BYTES - 1);
    if (body + WIDE_BYTES <= bytes) body_end = body + ((bytes - body) & ~uint64_t{WIDE_BYTES - 1});
    Warp::each([&](uint32_t lane) {
#pragma unroll 4
      for (uint64_t i = body + lane * WIDE_BYTES; i < body_end; i += Warp::LANES * WIDE_BYTES) {
        store(to + i, load<Wide>(from + i));
      }
    });
  } else {
    body = -stream.to & 3;
    const uint64_t skew = (stream.from + body) & 3;
    if (body < skew) body += 4;  // the first word's load starts `skew` bytes before it
    if (body + 8 <= bytes) body_end = body + ((bytes - body - 4) & ~uint64_t{3});
    Warp::each([&](uint32_t lane) {
#pragma unroll 8
      for (uint64_t i = body + lane * 4; i < body_end; i += Warp::LANES * 4) {
        const uint8_t* word = from + i - skew;
        const uint32_t low = load<uint32_t>(word), high = load<uint32_t>(word + 4);
        store(to + i, word_across(low, high, static_cast<uint32_t>(skew) * 8));
      }
    });
  }
  if (body_end == 0) body = body_end = bytes < Warp::LANES ? bytes : Warp::LANES;
  Warp::each([&](uint32_t lane) {
    if (lane < body) to[lane] = from[lane];
    if (body_end + lane < bytes) to[body_end + lane] = from[body_end + lane];
  });
  return kStreamOk;
}

}  // namespace lz
