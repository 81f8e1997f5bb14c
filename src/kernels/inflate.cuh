#pragma once
// Decodes DEFLATE (RFC 1951), and nothing that zlib's inflate would not decode.
//
//   for each block:
//     stored:  copy
//     else:    code lengths -> canonical codes -> two lookup tables          (built by all lanes)
//              until the end of the block:                       (all lanes do the same, in step)
//                literal:  batch[n++] = literal
//                match:    batch[n + j] = batch[n - distance + j]               (one lane a byte)
//                batch full:  write it out                                      (one lane a byte)
//
// One warp decodes one stream, whose symbols can only be found one after the other. So the time
// from one symbol to the next counts, and nothing else:
//
// - The batch holds *references*, not bytes: a literal is itself; what a match copies from within
//   the batch is copied as a reference; what it copies from before the batch is a distance from
//   the batch's start. Nothing waits for the output's memory until a whole batch is written, and
//   then all its bytes are loaded at once.
// - The lookups that can follow a symbol are begun before it is known what the symbol is.
// - Input is copied to shared memory 16 words at a time, well ahead, and read from there one word
//   ahead.
//
// Input and output may have any alignment. Input is loaded by aligned words, and bytewise where a
// word is not wholly inside. Batches end at multiples of 32 bytes of the output's address.

#include "lanes.cuh"
#include "streams.cuh"

namespace deflate {

constexpr uint32_t kLongestCode = 15;  // bits
constexpr uint32_t kLiteralBits = 10;  // of an index to the table of literals and lengths
constexpr uint32_t kDistanceBits = 8;  // of an index to the table of distances
constexpr uint32_t kLengthBits = 7;  // of an index to the table of code lengths: no code is longer
constexpr uint32_t kMaxLiterals = 286;  // symbols that a dynamic block may name
constexpr uint32_t kMaxDistances = 30;
constexpr uint32_t kEndOfBlock = 256;
constexpr uint32_t kSegment = 16;  // words of input that are loaded at once
constexpr uint32_t kWindow = 4 * kSegment;
constexpr uint32_t kBatch = 512;    // bytes of output
constexpr uint32_t kRows = 8;       // bytes that a lane loads at once
constexpr uint16_t kByte = 0x8000;  // marks a reference that is a byte; else it is a distance - 1

// A table entry: bits 0..4 are the bits of code and extra value together, 5..8 those of the code,
// then the kind; bits 16..31 are the literal, the code length, or the base that the extra value is
// added to.
constexpr uint32_t kMatch = 1 << 9;  // length or distance
constexpr uint32_t kEnd = 1 << 10;
constexpr uint32_t kLong = 1 << 11;     // the code is longer than the table's index
constexpr uint32_t kInvalid = 1 << 12;  // no such code, or one that must not be used
constexpr uint32_t kSpecial = kMatch | kEnd | kLong | kInvalid;

enum class Alphabet { kLengths, kLiterals, kDistances };

/// A canonical code: the codes of `length` bits are those below `limit[length]`, which has 15 bits;
/// `base[length]` plus a code's value is its index in `symbols`.
template <uint32_t SYMBOLS>
struct Code {
  int32_t base[kLongestCode + 1];
  uint16_t limit[kLongestCode + 1];
  uint16_t symbols[SYMBOLS];
};

/// The memory that the lanes of one stream share. The code of the code lengths comes before that of
/// the distances, in the same place.
struct Shared {
  uint32_t literal_table[1 << kLiteralBits];
  uint32_t distance_table[1 << kDistanceBits];
  uint16_t batch[kBatch];
  uint32_t window[kWindow];
  Code<288> literals;
  Code<32> distances;
  uint16_t counts[kLongestCode + 1];
  uint16_t places[kLongestCode + 1];
  uint8_t lengths[320];
};

LANES_FN uint32_t total_bits(uint32_t entry) { return entry & 31; }
LANES_FN uint32_t code_bits(uint32_t entry) { return entry >> 5 & 15; }
LANES_FN uint32_t entry_value(uint32_t entry) { return entry >> 16; }

LANES_FN uint32_t make_entry(uint32_t kind, uint32_t value, uint32_t bits, uint32_t extra_bits) {
  return value << 16 | kind | bits << 5 | (bits + extra_bits);
}

/// The table entry of a symbol with a code of `bits` bits.
template <Alphabet ALPHABET>
LANES_FN uint32_t entry_of(uint32_t symbol, uint32_t bits) {
  if (ALPHABET == Alphabet::kLengths) return make_entry(0, symbol, bits, 0);
  if (ALPHABET == Alphabet::kDistances) {
    if (symbol >= kMaxDistances) return kInvalid;
    if (symbol < 2) return make_entry(kMatch, 1 + symbol, bits, 0);
    const uint32_t extra_bits = (symbol >> 1) - 1;
    return make_entry(kMatch, 1 + ((2 + (symbol & 1)) << extra_bits), bits, extra_bits);
  }
  if (symbol < kEndOfBlock) return make_entry(0, symbol, bits, 0);
  if (symbol == kEndOfBlock) return make_entry(kEnd, 0, bits, 0);
  if (symbol >= kMaxLiterals) return kInvalid;
  const uint32_t length = symbol - kEndOfBlock - 1;
  if (length < 8) return make_entry(kMatch, 3 + length, bits, 0);
  if (length == 28) return make_entry(kMatch, 258, bits, 0);
  const uint32_t extra_bits = (length >> 2) - 1;
  return make_entry(kMatch, 3 + ((4 + (length & 3)) << extra_bits), bits, extra_bits);
}

/// The entry of the code that `bits`, in the order of the stream, begin with.
template <Alphabet ALPHABET, uint32_t SYMBOLS>
LANES_FN uint32_t find(const Code<SYMBOLS>& code, uint32_t bits) {
  const uint32_t value = lanes::reverse_bits(bits) >> (32 - kLongestCode);
  uint32_t length = 1;
  LANES_UNROLL
  for (uint32_t i = 1; i <= kLongestCode; ++i) length += value >= code.limit[i];
  if (length > kLongestCode) return kInvalid;
  const int32_t rank = code.base[length] + static_cast<int32_t>(value >> (kLongestCode - length));
  return entry_of<ALPHABET>(code.symbols[rank], length);
}

/// Makes the code and the table of symbols 0..symbols-1 from `shared.lengths` + `first`.
///
/// False where zlib finds the lengths invalid: over-subscribed, or incomplete and not one code of
/// one bit. No code at all is invalid only if it is used; for code lengths it always is.
template <Alphabet ALPHABET, class Lanes, uint32_t SYMBOLS>
LANES_FN bool build(Lanes lanes, Shared& shared, uint32_t first, uint32_t symbols,
                    Code<SYMBOLS>& code, uint32_t* table, uint32_t table_bits) {
  const uint8_t* lengths = shared.lengths + first;
  const uint32_t lane = lanes.lane();
  for (uint32_t i = lane; i <= kLongestCode; i += Lanes::LANES) shared.counts[i] = 0;
  lanes.sync();
  for (uint32_t start = 0; start < symbols; start += Lanes::LANES) {
    const uint32_t length = start + lane < symbols ? lengths[start + lane] : 0;
    const uint32_t same = lanes.match(length);
    if ((same & ((1u << lane) - 1)) == 0) {
      shared.counts[length] =
          static_cast<uint16_t>(shared.counts[length] + lanes::count_bits(same));
    }
    lanes.sync();
  }

  int32_t left = 1;  // codes of `length` bits that are still free
  uint32_t longest = 0;
  bool oversubscribed = false;
  for (uint32_t length = 1, value = 0, rank = 0; length <= kLongestCode; ++length) {
    const uint32_t count = shared.counts[length];
    left = 2 * left - static_cast<int32_t>(count);
    oversubscribed |= left < 0;
    if (oversubscribed) break;
    if (count) longest = length;
    value *= 2;
    if (lane == 0) {
      code.base[length] = static_cast<int32_t>(rank) - static_cast<int32_t>(value);
      code.limit[length] = static_cast<uint16_t>((value + count) << (kLongestCode - length));
      shared.places[length] = static_cast<uint16_t>(rank);
    }
    value += count;
    rank += count;
  }
  lanes.sync();
  if (oversubscribed) return false;
  if (left > 0 && (ALPHABET == Alphabet::kLengths || longest > 1)) return false;

  for (uint32_t start = 0; start < symbols; start += Lanes::LANES) {
    const uint32_t length = start + lane < symbols ? lengths[start + lane] : 0;
    const uint32_t same = lanes.match(length);
    const uint32_t before = lanes::count_bits(same & ((1u << lane) - 1));
    if (length) code.symbols[shared.places[length] + before] = static_cast<uint16_t>(start + lane);
    lanes.sync();
    if (length && before == 0) {
      shared.places[length] =
          static_cast<uint16_t>(shared.places[length] + lanes::count_bits(same));
    }
    lanes.sync();
  }
  for (uint32_t i = lane; i < 1u << table_bits; i += Lanes::LANES) {
    const uint32_t entry = find<ALPHABET>(code, i);
    table[i] = code_bits(entry) > table_bits ? kLong : entry;
  }
  lanes.sync();
  return true;
}

/// The bits of the input, lowest first; beyond its end come zeros.
template <class Lanes>
class BitReader {
 public:
  LANES_FN BitReader(Lanes lanes, uint32_t* window, uint64_t from, uint32_t bytes)
      : lanes_(lanes),
        window_(window),
        from_(reinterpret_cast<const uint8_t*>(from)),
        bytes_(bytes),
        head_(static_cast<uint32_t>(from % 4)) {
    seek(0);
  }

  /// Continues at a byte.
  LANES_FN void seek(uint32_t byte) {
    const uint64_t at = static_cast<uint64_t>(head_) + byte;
    word_ = static_cast<uint32_t>(at / 4);
    due_ = word_ - word_ % kSegment;
    lanes_.wait_for_copies();
    lanes_.sync();
    load(due_);
    load(due_ + kSegment);
    load_ahead();
    next_ = window_[word_ % kWindow];
    buffer_ = 0;
    count_ = 0;
    refill();
    drop(static_cast<uint32_t>(at % 4) * 8);
  }

  /// Whether `load_ahead` has to be called, which it has to be before 16 more words are used.
  LANES_FN bool due() const { return word_ >= due_; }

  /// Begins to load the segment after the next one, which by now should have arrived.
  LANES_FN void load_ahead() {
    lanes_.wait_for_copies();
    lanes_.sync();
    load(due_ + 2 * kSegment);
    due_ += kSegment;
  }

  /// Makes sure of 33 bits. Without a branch, to be done while a lookup is under way.
  LANES_FN void refill() {
    const bool low = count_ <= 32;
    buffer_ |= low ? static_cast<uint64_t>(next_) << count_ : 0;
    count_ += low ? 32 : 0;
    word_ += low;
    next_ = window_[word_ % kWindow];
  }

  /// Makes sure of `bits` bits, at most 33, where they are most likely there.
  LANES_FN void need(uint32_t bits) {
    if (count_ < bits) refill();
  }

  LANES_FN uint32_t low() const { return static_cast<uint32_t>(buffer_); }
  /// The lowest bits after those of an entry.
  LANES_FN uint32_t low_after(uint32_t entry) const {
    return lanes::shift_right(static_cast<uint32_t>(buffer_), static_cast<uint32_t>(buffer_ >> 32),
                              entry);
  }
  LANES_FN void drop(uint32_t bits) {
    buffer_ >>= bits;
    count_ -= bits;
  }
  LANES_FN void drop_to_byte() { drop(count_ % 8); }

  /// Reads a number of at most 16 bits.
  LANES_FN uint32_t take_bits(uint32_t bits) {
    refill();
    const uint32_t value = low() & ((1u << bits) - 1);
    drop(bits);
    return value;
  }

  /// The value of an entry with its extra bits, which are dropped with its code.
  LANES_FN uint32_t take_value(uint32_t entry) {
    const uint32_t bits = low() & ((1u << total_bits(entry)) - 1);
    drop(total_bits(entry));
    return entry_value(entry) + (bits >> code_bits(entry));
  }

  /// Bytes that are used, the last one perhaps in part; more than there are if the input is cut.
  LANES_FN uint64_t used() const {
    return (static_cast<uint64_t>(word_) * 32 - count_ + 7) / 8 - head_;
  }
  LANES_FN bool overrun() const { return used() > bytes_; }

 private:
  /// Begins to load the segment of the window from word `first` on.
  LANES_FN void load(uint32_t first) {
    for (uint32_t i = lanes_.lane(); i < kSegment; i += Lanes::LANES) {
      const uint64_t word = static_cast<uint64_t>(first) + i;
      const int64_t at = static_cast<int64_t>(word * 4) - head_;
      const int64_t bytes = bytes_;
      uint32_t* to = window_ + word % kWindow;
      if (at >= 0 && at + 4 <= bytes) {
        lanes_.copy(to, reinterpret_cast<const uint32_t*>(from_ + at));
        continue;
      }
      uint32_t value = 0;
      for (int k = 0; k < 4; ++k) {
        if (at + k >= 0 && at + k < bytes) value |= static_cast<uint32_t>(from_[at + k]) << (8 * k);
      }
      *to = value;
    }
  }

  Lanes lanes_;
  uint32_t* window_;
  const uint8_t* from_;
  uint32_t bytes_;
  uint32_t head_;  // bytes of the first word that come before the input
  uint32_t word_;  // the word after those that went to the buffer
  uint32_t next_;  // its value
  uint32_t due_;   // the first word of the segment to be begun only after `load_ahead`
  uint64_t buffer_;
  uint32_t count_;  // bits in the buffer
};

/// The decoder of one stream; every lane has its own, and all do the same but for their share of
/// the loads, stores and table entries.
template <class Lanes>
class Decoder {
 public:
  LANES_FN Decoder(Lanes lanes, Shared& shared, const Stream& stream)
      : lanes_(lanes),
        shared_(shared),
        in_(lanes, shared.window, stream.from, stream.from_bytes),
        from_(reinterpret_cast<const uint8_t*>(stream.from)),
        from_bytes_(stream.from_bytes),
        to_(reinterpret_cast<uint8_t*>(stream.to)),
        to_bytes_(stream.to_bytes) {
    begin_batch(0);
  }

  /// Decodes the stream and returns its StreamError.
  LANES_FN uint32_t run() {
    uint32_t error = kStreamOk;
    for (bool last = false; !last && !error && !in_.overrun();) {
      if (in_.due()) in_.load_ahead();
      last = in_.take_bits(1);
      const uint32_t type = in_.take_bits(2);
      error = type == 0 ? stored() : compressed(type);
    }
    // What is found wrong beyond the end is only that there is no more.
    if (in_.overrun()) return kStreamTruncated;
    if (error) return error;
    write_batch();
    if (start_ != to_bytes_) return kStreamTooShort;
    return in_.used() == from_bytes_ ? kStreamOk : kStreamTrailing;
  }

 private:
  LANES_FN uint32_t stored() {
    in_.drop_to_byte();
    const uint32_t length = in_.take_bits(16);
    const uint32_t complement = in_.take_bits(16);
    if (length != (complement ^ 0xffff)) return kStreamBadHeader;
    const uint64_t at = in_.used();
    if (at + length > from_bytes_) return kStreamTruncated;
    write_batch();
    if (length > to_bytes_ - start_) return kStreamTooLong;
    const uint8_t* from = from_ + at;
    uint8_t* to = to_ + start_;
    for (uint32_t first = 0; first < length; first += kRows * Lanes::LANES) {
      uint8_t bytes[kRows];
      each_row(first, length, [&](uint32_t k, uint32_t i) { bytes[k] = from[i]; });
      each_row(first, length, [&](uint32_t k, uint32_t i) { to[i] = bytes[k]; });
    }
    lanes_.sync();
    begin_batch(start_ + length);
    in_.seek(static_cast<uint32_t>(at) + length);
    return kStreamOk;
  }

  LANES_FN uint32_t compressed(uint32_t type) {
    // Streams may be full of small blocks with the fixed code.
    if (type == 1 && tables_are_fixed_) return symbols();
    tables_are_fixed_ = type == 1;
    uint32_t literals = 288, distances = 32;
    if (type == 1) {
      fixed_lengths();
    } else if (type != 2 || !dynamic_lengths(&literals, &distances)) {
      return kStreamBadHeader;
    }
    const bool valid =
        build<Alphabet::kLiterals>(lanes_, shared_, 0, literals, shared_.literals,
                                   shared_.literal_table, kLiteralBits) &&
        build<Alphabet::kDistances>(lanes_, shared_, literals, distances, shared_.distances,
                                    shared_.distance_table, kDistanceBits);
    return valid ? symbols() : kStreamBadHeader;
  }

  LANES_FN void fixed_lengths() {
    for (uint32_t i = lanes_.lane(); i < 320; i += Lanes::LANES) {
      shared_.lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : i < 288 ? 8 : 5;
    }
    lanes_.sync();
  }

  /// Reads the code lengths of both alphabets, and how many there are of each; false if invalid.
  LANES_FN bool dynamic_lengths(uint32_t* literal_count, uint32_t* distance_count) {
    const uint32_t literals = in_.take_bits(5) + 257;
    const uint32_t distances = in_.take_bits(5) + 1;
    const uint32_t code_lengths = in_.take_bits(4) + 4;
    *literal_count = literals;
    *distance_count = distances;
    if (literals > kMaxLiterals || distances > kMaxDistances) return false;

    for (uint32_t i = lanes_.lane(); i < 19; i += Lanes::LANES) shared_.lengths[i] = 0;
    lanes_.sync();
    for (uint32_t i = 0; i < code_lengths; ++i) {
      // 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15
      const uint32_t symbol = i < 3 ? 16 + i : i == 3 ? 0 : i % 2 ? 9 - i / 2 : 6 + i / 2;
      const uint32_t length = in_.take_bits(3);
      if (lanes_.lane() == 0) shared_.lengths[symbol] = static_cast<uint8_t>(length);
    }
    lanes_.sync();
    uint32_t* table = shared_.distance_table;
    if (!build<Alphabet::kLengths>(lanes_, shared_, 0, 19, shared_.distances, table, kLengthBits)) {
      return false;
    }

    uint32_t last = 0;
    for (uint32_t i = 0; i < literals + distances;) {
      if (in_.due()) in_.load_ahead();
      in_.refill();
      const uint32_t entry = table[in_.low() & ((1 << kLengthBits) - 1)];
      in_.drop(total_bits(entry));
      const uint32_t symbol = entry_value(entry);
      uint32_t repeat = 1;
      if (symbol == 16) {
        if (i == 0) return false;
        repeat = 3 + in_.take_bits(2);
      } else if (symbol > 16) {
        last = 0;
        repeat = symbol == 17 ? 3 + in_.take_bits(3) : 11 + in_.take_bits(7);
      } else {
        last = symbol;
      }
      if (repeat > literals + distances - i) return false;
      for (uint32_t j = lanes_.lane(); j < repeat; j += Lanes::LANES) {
        shared_.lengths[i + j] = static_cast<uint8_t>(last);
      }
      i += repeat;
    }
    lanes_.sync();
    return shared_.lengths[kEndOfBlock] != 0;
  }

  LANES_FN uint32_t look_up_literal(uint32_t bits) const {
    return lanes::load_now(shared_.literal_table + (bits & ((1 << kLiteralBits) - 1)));
  }

  /// The entries of what follows a literal, and of what follows a length.
  struct Next {
    uint32_t literal;
    uint32_t distance;
  };
  LANES_FN Next look_up_next(uint32_t entry) const {
    const uint32_t rest = in_.low_after(entry);
    return {look_up_literal(rest),
            lanes::load_now(shared_.distance_table + (rest & ((1 << kDistanceBits) - 1)))};
  }

  /// Decodes the symbols of a block, the end included.
  LANES_FN uint32_t symbols() {
    in_.refill();
    uint32_t entry = look_up_literal(in_.low());
    for (;;) {  // with 33 bits or more
      Next next = look_up_next(entry);
      if (!(entry & kSpecial) && filled_ != room_ && !in_.due()) {
        if (lanes_.lane() == 0) {
          shared_.batch[filled_] = static_cast<uint16_t>(kByte | entry_value(entry));
        }
        ++filled_;
        in_.drop(total_bits(entry));
        in_.refill();
        entry = next.literal;
        continue;
      }

      if (in_.due()) in_.load_ahead();
      if (entry & kMatch) {
        const uint32_t length = in_.take_value(entry);
        in_.refill();
        if (next.distance & (kLong | kInvalid)) {
          next.distance = find<Alphabet::kDistances>(shared_.distances, in_.low());
          if (next.distance & kInvalid) return kStreamBadCode;
        }
        const uint32_t distance = in_.take_value(next.distance);
        in_.need(kLiteralBits);
        entry = look_up_literal(in_.low());
        if (distance > start_ + filled_) return kStreamBadOffset;
        if (const uint32_t error = copy(distance, length)) return error;
        in_.refill();
      } else if (entry & kLong) {
        entry = find<Alphabet::kLiterals>(shared_.literals, in_.low());
      } else if (entry & kEnd) {
        in_.drop(total_bits(entry));
        return kStreamOk;
      } else if (entry & kInvalid) {
        return kStreamBadCode;
      } else if (filled_ == room_) {
        if (const uint32_t error = next_batch()) return error;
      }
    }
  }

  LANES_FN uint32_t copy(uint32_t distance, uint32_t length) {
    if (length > room_ - filled_) {
      do {
        const uint32_t part = room_ - filled_;
        refer(distance, part);
        length -= part;
        if (const uint32_t error = next_batch()) return error;
      } while (length > room_);
    }
    refer(distance, length);
    return kStreamOk;
  }

  /// Appends references to the `length` bytes that repeat what is `distance` back.
  LANES_FN void refer(uint32_t distance, uint32_t length) {
    uint16_t* to = shared_.batch + filled_;
    if (distance >= filled_ + length) {  // all before the batch
      const uint32_t first = distance - filled_ - 1;
      for (uint32_t j = lanes_.lane(); j < length; j += Lanes::LANES) {
        to[j] = static_cast<uint16_t>(first - j);
      }
    } else {
      lanes_.sync();
      for (uint32_t j = lanes_.lane(); j < length; j += Lanes::LANES) {
        const uint32_t period = distance < length ? j % distance : j;
        const int32_t at = static_cast<int32_t>(filled_ + period) - static_cast<int32_t>(distance);
        to[j] = at < 0 ? static_cast<uint16_t>(-1 - at) : shared_.batch[at];
      }
    }
    filled_ += length;
  }

  /// Writes the batch to begin another one; an error if there is no room, or no more input.
  LANES_FN uint32_t next_batch() {
    if (in_.overrun()) return kStreamTruncated;
    write_batch();
    return room_ ? kStreamOk : kStreamTooLong;
  }

  LANES_FN void write_batch() {
    lanes_.sync();
    uint8_t* to = to_ + start_;
    for (uint32_t first = 0; first < filled_; first += kRows * Lanes::LANES) {
      uint16_t references[kRows];
      uint8_t bytes[kRows];
      each_row(first, filled_, [&](uint32_t k, uint32_t i) { references[k] = shared_.batch[i]; });
      each_row(first, filled_, [&](uint32_t k, uint32_t) {
        bytes[k] = static_cast<uint8_t>(references[k]);
        if (!(references[k] & kByte)) bytes[k] = *(to - 1 - references[k]);
      });
      each_row(first, filled_, [&](uint32_t k, uint32_t i) { to[i] = bytes[k]; });
    }
    lanes_.sync();
    begin_batch(start_ + filled_);
  }

  /// Calls row(k, i) for k below kRows, where i is this lane's k-th byte from `first` on, if that
  /// is below `end`. Loads and stores are in loops of their own, so that the loads do not wait for
  /// each other.
  template <class Row>
  LANES_FN void each_row(uint32_t first, uint32_t end, Row row) const {
    LANES_UNROLL
    for (uint32_t k = 0; k < kRows; ++k) {
      const uint32_t i = first + k * Lanes::LANES + lanes_.lane();
      if (i < end) row(k, i);
    }
  }

  LANES_FN void begin_batch(uint32_t start) {
    start_ = start;
    filled_ = 0;
    room_ = kBatch - (reinterpret_cast<uintptr_t>(to_) + start) % 32;
    if (room_ > to_bytes_ - start) room_ = to_bytes_ - start;
  }

  Lanes lanes_;
  Shared& shared_;
  BitReader<Lanes> in_;
  const uint8_t* from_;
  uint32_t from_bytes_;
  uint8_t* to_;
  uint32_t to_bytes_;
  uint32_t start_;   // bytes of output before the batch
  uint32_t filled_;  // references in the batch
  uint32_t room_;    // references that it may hold
  bool tables_are_fixed_ = false;
};

}  // namespace deflate
