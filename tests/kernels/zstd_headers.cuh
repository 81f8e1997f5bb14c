#pragma once
// Reads the headers of a chunk's zstd frames, as src/codec/zstd/blocks.rs does for the plugin: for
// tests and benchmarks that run the kernels without Rust. One Block each, tables included; one
// thread reads a chunk.
//
// What is accepted is what src/codec/zstd/blocks.rs accepts of a frame, which lists where that is
// less than libzstd's decoder takes; here, any number of frames, skippable ones among them. Source:
// RFC 8878, sections 3.1.1, 3.1.2, 4.1.1 and 4.2.1.

#include "../../src/kernels/zstd_block.cuh"

namespace zstd_gpu {

/// Bytes of which nothing outside is read; `bad` stays set once something was.
struct Cursor {
  const uint8_t* bytes;
  uint32_t at, end;
  bool bad;

  WARP_FN uint32_t left() const { return end - at; }
  WARP_FN uint64_t number(uint32_t size) {
    uint64_t value = 0;
    if (left() < size) bad = true;
    if (bad) return 0;
    for (uint32_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(bytes[at + i]) << 8 * i;
    at += size;
    return value;
  }
  WARP_FN void skip(uint64_t size) {
    if (left() < size) bad = true;
    if (!bad) at += static_cast<uint32_t>(size);
  }
  /// At least 25 bits from `bit` of what is left, lowest first; zeros after the end.
  WARP_FN uint32_t forward(uint32_t bit) const {
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      if (bit / 8 + i < left()) word |= static_cast<uint32_t>(bytes[at + bit / 8 + i]) << 8 * i;
    }
    return word >> bit % 8;
  }
  /// Whether the last byte has a mark.
  WARP_FN bool marked() const { return left() > 0 && bytes[end - 1] != 0; }
};

/// Reads the description of an FSE table; false if it is not one.
WARP_FN bool read_counts(Cursor& cursor, int16_t* counts, uint32_t codes, uint32_t max_log,
                         uint8_t& log) {
  if (cursor.left() == 0) return false;
  const uint32_t table_log = (cursor.bytes[cursor.at] & 15u) + 5;
  if (table_log > max_log) return false;
  for (uint32_t i = 0; i < codes; ++i) counts[i] = 0;
  uint32_t bit = 4, code = 0, left = 1u << table_log;
  while (left > 0) {
    // A value of 0 to left + 1; the smaller ones take one bit less.
    const uint32_t bits = warp::log2_floor(left + 1) + 1, half = 1u << (bits - 1);
    const uint32_t short_values = (1u << bits) - 2 - left;
    uint32_t value = cursor.forward(bit);
    if ((value & (half - 1)) < short_values) {
      bit += bits - 1;
      value &= half - 1;
    } else {
      bit += bits;
      value &= 2 * half - 1;
      if (value >= half) value -= short_values;
    }
    if (code >= codes) return false;
    counts[code++] = static_cast<int16_t>(static_cast<int32_t>(value) - 1);
    left -= value == 0 ? 1 : value - 1;
    if (value != 1) continue;
    uint32_t zeros;
    do {
      zeros = cursor.forward(bit) & 3;
      bit += 2;
      code += zeros;
    } while (zeros == 3 && code <= codes);
  }
  cursor.skip((bit + 7) / 8);
  log = static_cast<uint8_t>(table_log);
  return !cursor.bad;
}

constexpr uint32_t kMaxWeightLog = 6, kMaxWeights = 255;

/// Decodes weights that two FSE states took turns to encode, all that is left of the cursor; how
/// many, or 0.
WARP_FN uint32_t read_weights(Cursor& cursor, uint8_t* weights) {
  constexpr uint32_t kWeightCodes = kHuffmanBits + 2;
  int16_t counts[kWeightCodes];
  uint8_t log;
  if (!read_counts(cursor, counts, kWeightCodes, kMaxWeightLog, log) || !cursor.marked()) return 0;
  // Bits of the next state | its baseline << 4 | code << 12.
  uint16_t states[1 << kMaxWeightLog];
  const uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
  uint32_t high = size, at = 0;
  for (uint32_t code = 0; code < kWeightCodes; ++code) {
    if (counts[code] == -1) states[--high] = static_cast<uint16_t>(code);
  }
  for (uint32_t code = 0; code < kWeightCodes; ++code) {
    for (int i = 0; i < counts[code]; ++i) {
      states[at] = static_cast<uint16_t>(code);
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
    if (counts[code] == -1) counts[code] = 1;
  }
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t code = states[i], state = static_cast<uint32_t>(counts[code]++);
    const uint32_t bits = log - warp::log2_floor(state);
    states[i] = static_cast<uint16_t>(bits | ((state << bits) - size) << 4 | code << 12);
  }
  int32_t left = static_cast<int32_t>((cursor.left() - 1) * 8 +
                                      warp::log2_floor(cursor.bytes[cursor.end - 1]));
  const auto take = [&](uint32_t bits) -> uint32_t {
    left -= static_cast<int32_t>(bits);
    return left < 0 ? 0 : cursor.forward(static_cast<uint32_t>(left)) & ((1u << bits) - 1);
  };
  uint32_t pair[2];
  pair[0] = take(log);
  pair[1] = take(log);
  if (left < 0) return 0;
  for (uint32_t count = 0; count + 1 < kMaxWeights; ++count) {
    const uint32_t state = states[pair[count % 2]];
    weights[count] = static_cast<uint8_t>(state >> 12);
    pair[count % 2] = (state >> 4 & 255) + take(state & 15);
    // The first state that has no bits left for its successor leaves the last weight to the other
    // one.
    if (left < 0) {
      weights[count + 1] = static_cast<uint8_t>(states[pair[(count + 1) % 2]] >> 12);
      return count + 2;
    }
  }
  return 0;
}

/// Completes `count` weights by the last one, which makes their sum a power of two, and puts them
/// into the block.
WARP_FN bool complete_tree(Block& block, uint8_t* weights, uint32_t count) {
  uint32_t sum = 0, ones = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (weights[i] > kHuffmanBits + 1) return false;
    sum += 1u << weights[i] >> 1;
    ones += weights[i] == 1;
  }
  if (sum == 0) return false;
  const uint32_t bits = warp::log2_floor(sum) + 1, rest = (1u << bits) - sum;
  if (bits > kHuffmanBits || (rest & (rest - 1)) != 0) return false;
  weights[count] = static_cast<uint8_t>(warp::log2_floor(rest) + 1);
  ones += weights[count] == 1;
  if (ones < 2) return false;
  for (uint32_t i = 0; i < kSymbols / 2; ++i) {
    const uint32_t low = 2 * i <= count ? weights[2 * i] : 0u;
    const uint32_t high = 2 * i + 1 <= count ? weights[2 * i + 1] : 0u;
    block.weights[i] = static_cast<uint8_t>(low | high << 4);
  }
  block.huffman_log = static_cast<uint8_t>(bits);
  block.symbols = static_cast<uint8_t>(count);
  return true;
}

WARP_FN bool read_tree(Cursor& cursor, Block& block) {
  uint8_t weights[kSymbols];
  const uint32_t header = static_cast<uint32_t>(cursor.number(1));
  const uint32_t count = header - 127, bytes = header >= 128 ? (count + 1) / 2 : header;
  if (cursor.bad || cursor.left() < bytes) return false;
  Cursor packed = {cursor.bytes, cursor.at, cursor.at + bytes, false};
  cursor.skip(bytes);
  if (header < 128) {
    const uint32_t read = read_weights(packed, weights);
    return read > 0 && complete_tree(block, weights, read);
  }
  for (uint32_t i = 0; i < count; ++i) {
    weights[i] = packed.bytes[packed.at + i / 2] >> 4 * (1 - i % 2) & 15;
  }
  return complete_tree(block, weights, count);
}

/// The default distributions. RFC 8878, section 3.1.1.3.2.2.
WARP_CONSTANT int16_t kDefaultLiterals[kLiteralCodes] = {4, 3, 2, 2, 2, 2, 2, 2, 2,  2,  2,  2,
                                                         2, 1, 1, 1, 2, 2, 2, 2, 2,  2,  2,  2,
                                                         2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
WARP_CONSTANT int16_t kDefaultMatches[kMatchCodes] = {
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
WARP_CONSTANT int16_t kDefaultOffsets[kOffsetCodes] = {1, 1, 1,  1,  1,  1,  2,  2, 2, 1, 1,
                                                       1, 1, 1,  1,  1,  1,  1,  1, 1, 1, 1,
                                                       1, 1, -1, -1, -1, -1, -1, 0, 0, 0};

/// Reads one of the three tables by its mode; `counts` and `log` are those of the block before, if
/// there are any.
WARP_FN bool read_table(Cursor& cursor, uint32_t mode, int16_t* counts, uint32_t codes,
                        uint32_t max_log, const int16_t* defaults, uint8_t default_log,
                        uint8_t& log, bool& known) {
  const bool repeat = mode == 3;
  if (repeat) return known;
  known = true;
  if (mode == 2) return read_counts(cursor, counts, codes, max_log, log);
  const uint32_t code = mode == 1 ? static_cast<uint32_t>(cursor.number(1)) : 0;
  if (cursor.bad || code >= codes) return false;
  for (uint32_t i = 0; i < codes; ++i) counts[i] = mode == 1 ? i == code : defaults[i];
  log = mode == 1 ? 0 : default_log;
  return true;
}

/// What a frame's blocks may take over from those before.
struct Known {
  bool tree, literals, matches, offsets;
};

WARP_FN StreamError read_literals(Cursor& cursor, Block& block, Known& known) {
  if (cursor.left() == 0) return kStreamBadHeader;
  const uint32_t first = cursor.bytes[cursor.at], kind = first & 3, format = first >> 2 & 3;
  // Raw or RLE: a size of 5, 12 or 20 bits. Huffman: two sizes of 10, 14 or 18 bits.
  const uint32_t plain_bits = format == 1 ? 12 : format == 3 ? 20 : 5;
  const uint32_t size_bits = kind < 2 ? plain_bits : format < 2 ? 10 : format == 2 ? 14 : 18;
  const uint32_t shift = kind < 2 && format % 2 == 0 ? 3 : 4;
  const uint32_t header_bytes = (shift + (kind < 2 ? size_bits : 2 * size_bits) + 7) / 8;
  const uint64_t header = cursor.number(header_bytes) >> shift;
  block.literals = static_cast<uint32_t>(header & ((1u << size_bits) - 1));
  if (cursor.bad || block.literals > block.limit) return kStreamBadHeader;
  block.literals_at = cursor.at;
  block.literal_kind = kind == 0 ? kRawLiterals : kind == 1 ? kRleLiterals : kHuffmanLiterals;
  if (kind < 2) {
    cursor.skip(kind == 0 ? block.literals : 1);
    return cursor.bad ? kStreamBadHeader : kStreamOk;
  }
  const uint32_t bytes = static_cast<uint32_t>(header >> size_bits);
  Cursor coded = {cursor.bytes, cursor.at, cursor.at + bytes, false};
  cursor.skip(bytes);
  if (cursor.bad) return kStreamBadHeader;
  if (kind == 2) {
    if (!read_tree(coded, block)) return kStreamBadCode;
    known.tree = true;
  }
  if (!known.tree) return kStreamBadCode;
  const uint32_t streams = format == 0 ? 1 : 4;
  uint32_t sizes[3] = {};
  for (uint32_t i = 0; i + 1 < streams; ++i) sizes[i] = static_cast<uint32_t>(coded.number(2));
  const int64_t last_literals =
      block.literals - int64_t{streams - 1} * ((block.literals + streams - 1) / streams);
  if (coded.bad || last_literals <= 0) return kStreamBadHeader;
  block.literals_at = coded.at;
  for (uint32_t i = 0; i < streams; ++i) {
    const uint32_t size = i + 1 == streams ? coded.left() : sizes[i];
    if (coded.left() < size) return kStreamBadHeader;
    const Cursor stream = {coded.bytes, coded.at, coded.at + size, false};
    if (!stream.marked()) return kStreamBadHeader;
    coded.skip(size);
    block.stream_bytes[i] = size;
  }
  return kStreamOk;
}

WARP_FN StreamError read_sequences(Cursor& cursor, Block& block, Known& known) {
  const uint32_t first = static_cast<uint32_t>(cursor.number(1));
  block.sequences = first < 128   ? first
                    : first < 255 ? (first - 128) << 8 | static_cast<uint32_t>(cursor.number(1))
                                  : static_cast<uint32_t>(cursor.number(2)) + 0x7F00;
  if (cursor.bad) return kStreamBadHeader;
  if (first == 0) return cursor.left() == 0 ? kStreamOk : kStreamTrailing;
  if (block.sequences == 0) return kStreamBadHeader;
  const uint32_t modes = static_cast<uint32_t>(cursor.number(1));
  if (cursor.bad || modes & 3) return kStreamBadHeader;
  if (!read_table(cursor, modes >> 6, block.literal_counts, kLiteralCodes, kMaxLengthLog,
                  kDefaultLiterals, 6, block.literal_log, known.literals) ||
      !read_table(cursor, modes >> 4 & 3, block.offset_counts, kOffsetCodes, kMaxOffsetLog,
                  kDefaultOffsets, 5, block.offset_log, known.offsets) ||
      !read_table(cursor, modes >> 2 & 3, block.match_counts, kMatchCodes, kMaxLengthLog,
                  kDefaultMatches, 6, block.match_log, known.matches)) {
    return kStreamBadCode;
  }
  if (!cursor.marked()) return kStreamBadHeader;
  block.sequences_at = cursor.at;
  block.sequence_bytes = cursor.left();
  const uint64_t least = block.literals + uint64_t{kMinMatch} * block.sequences;
  return least > block.limit ? kStreamTooLong : kStreamOk;
}

/// Reads a block behind its header, `bytes` long.
WARP_FN StreamError read_block(Cursor& cursor, uint32_t kind, uint32_t size, Block& block,
                               Known& known) {
  if (size > block.limit) return kStreamBadHeader;
  if (kind < 2) {
    block.literals = size;
    block.literals_at = cursor.at;
    block.literal_kind = kind == 0 ? kRawLiterals : kRleLiterals;
    cursor.skip(kind == 0 ? size : 1);
    return cursor.bad ? kStreamTruncated : kStreamOk;
  }
  Cursor inside = {cursor.bytes, cursor.at, cursor.at + size, false};
  cursor.skip(size);
  if (cursor.bad) return kStreamTruncated;
  const StreamError error = read_literals(inside, block, known);
  return error ? error : read_sequences(inside, block, known);
}

/// What the header of a frame says.
struct FrameHeader {
  uint64_t window_bytes, content_bytes;  // the latter ~0 if it is not declared
  bool checksum;
};

WARP_FN StreamError read_frame_header(Cursor& cursor, FrameHeader& header) {
  const uint32_t descriptor = static_cast<uint32_t>(cursor.number(1));
  if (cursor.bad || descriptor & 0x08) return kStreamBadHeader;
  const bool single = descriptor & 0x20;
  const uint32_t window = single ? 0 : static_cast<uint32_t>(cursor.number(1));
  const uint64_t dictionary = cursor.number((1u << (descriptor & 3)) >> 1);
  const uint32_t size = descriptor >> 6;
  header.content_bytes = ~uint64_t{0};
  if (size > 0 || single) header.content_bytes = cursor.number(1u << size) + (size == 1 ? 256 : 0);
  header.window_bytes =
      single ? header.content_bytes : uint64_t{8 + (window & 7)} << (7 + (window >> 3));
  header.checksum = descriptor & 0x04;
  constexpr uint64_t kMaxWindowBytes = uint64_t{15} << 28;
  return cursor.bad || dictionary || header.window_bytes > kMaxWindowBytes ? kStreamBadHeader
                                                                           : kStreamOk;
}

/// What is left to whoever reads a chunk's headers: the blocks, one after the other.
///
/// `take(block)` is called for each; the block is a copy of its own to keep. Returns a StreamError
/// | block << 8. Scratch places and the chunk's number are not filled in.
template <class Take>
WARP_FN uint32_t read_chunk(const uint8_t* bytes, uint32_t size, uint32_t to_bytes, Block& block,
                            Take take) {
  Cursor cursor = {bytes, 0, size, false};
  uint32_t number = 0;
  uint64_t least = 0;
  while (cursor.left() > 0) {
    const uint32_t magic = static_cast<uint32_t>(cursor.number(4));
    if ((magic & 0xFFFFFFF0) == 0x184D2A50) {
      cursor.skip(cursor.number(4));
      if (cursor.bad) return kStreamTruncated | number << 8;
      continue;
    }
    FrameHeader header = {};
    if (cursor.bad || magic != 0xFD2FB528 || read_frame_header(cursor, header) != kStreamOk)
      return kStreamBadHeader | number << 8;
    if (header.content_bytes != ~uint64_t{0} && header.content_bytes > to_bytes)
      return kStreamTooLong | number << 8;
    Known known = {};
    bool first = true, last = false;
    while (!last) {
      const uint32_t block_header = static_cast<uint32_t>(cursor.number(3));
      const uint32_t kind = block_header >> 1 & 3;
      if (cursor.bad || kind == 3)
        return (cursor.bad ? kStreamTruncated : kStreamBadHeader) | number << 8;
      last = block_header & 1;
      block.limit = header.window_bytes < kMaxBlockBytes
                        ? static_cast<uint32_t>(header.window_bytes)
                        : kMaxBlockBytes;
      block.literals = block.sequences = block.sequences_at = block.sequence_bytes = 0;
      for (uint32_t& stream : block.stream_bytes) stream = 0;
      block.first_of_frame = first;
      block.content_bytes = header.content_bytes == ~uint64_t{0}
                                ? kNotDeclared
                                : static_cast<uint32_t>(header.content_bytes);
      const StreamError error = read_block(cursor, kind, block_header >> 3, block, known);
      least += block.literals + uint64_t{kMinMatch} * block.sequences;
      if (error || least > to_bytes) return (error ? error : kStreamTooLong) | number << 8;
      take(block);
      first = false;
      ++number;
    }
    if (header.checksum) cursor.skip(4);
    if (cursor.bad) return kStreamTruncated | number << 8;
  }
  return kStreamOk;
}

}  // namespace zstd_gpu
