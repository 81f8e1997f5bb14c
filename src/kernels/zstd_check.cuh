#pragma once

// Whether a zstd frame decodes, and to how many bytes, without decoding it.
//
// The host has read every header and table description (src/codec/zstd/blocks.rs); what is left are
// the bitstreams.
//
//   for each block, on its own:
//     each Huffman stream: count codes until its bits are used up; they are its share of literals
//     sequences, by three FSE states, extra bits, repeat offsets: sum up what they regenerate,
//       and how far back matches reach
//   for each frame, block after block:
//     produced += size; every match must start within what is produced
//
// A block does not know what came before it: how much was produced, and the three repeat offsets.
// So it notes what it needs of them. An offset is a number, or, with its highest bit set, `initial
// repeat offset i, minus k` (k counts how often one was subtracted from it); the arithmetic on both
// is the same.
//
// Also compiled as host C++, where one lane does the work of all; tests/zstd_check.rs holds it
// against libzstd.

#include <cstdint>
#include <cstring>

#include "streams.cuh"
#include "zstd_block.cuh"

#ifdef __CUDACC__
#define ZSTD_FUNCTION __device__ __forceinline__
#else
#define ZSTD_FUNCTION inline
#endif

namespace zstd {

constexpr int kLiteralCodes = 36, kMatchCodes = 53, kOffsetCodes = 32;
constexpr int kMaxLengthLog = 9, kMaxOffsetLog = 8;
constexpr int kHuffmanBits = 11;
constexpr int kRepeats = 3;

using Block = zstd_gpu::Block;

// Field for field the `CheckedFrame` of src/codec/zstd/blocks.rs.
struct Frame {
  uint64_t from;      // address of the frame, any alignment
  uint64_t status;    // address of a uint32_t that receives a StreamError; untouched if all is well
  uint32_t to_bytes;  // what it has to decode to
  uint32_t first_block;  // number of its first block in the launch; ascending from frame to frame
  uint32_t blocks;
  uint32_t padding;
};
static_assert(sizeof(Frame) == 32 && alignof(Frame) == 8, "mirrored in Rust");

// What a block needs of what came before it, and what it leaves.
struct Summary {
  uint32_t error;  // a StreamError
  uint32_t bytes;  // regenerated
  uint32_t reach;  // a match starts so many bytes before the block
  // Initial repeat offset i is used, if slack[i] < kUnused: it may be at most slack[i] more than
  // what was produced before, and must be more than above[i].
  uint32_t slack[kRepeats], above[kRepeats];
  uint32_t repeats[kRepeats];  // at the end
};
static_assert(sizeof(Summary) == 48, "mirrored in Rust");

constexpr uint32_t kUnused = 0xFFFFFFFF;
// Larger than any offset into a chunk; `initial + i * step - k` stands for initial repeat offset i,
// minus k. k is below the number of sequences, which is far below the margin.
constexpr uint32_t kSymbolic = 0x80000000, kInitial = 0xA0000000, kStep = 0x10000000,
                   kMargin = 0x01000000;

struct Tables {
  // bits of the next state | extra bits << 5 | baseline of the next state << 11 | code << 20. The
  // bits of three states, and their extra bits, add up without a carry.
  uint32_t literal_states[1 << kMaxLengthLog];
  uint32_t match_states[1 << kMaxLengthLog];
  uint32_t offset_states[1 << kMaxOffsetLog];
  // Of the next 11 bits: how many are whole codes | how many codes << 4.
  uint8_t codes[1 << kHuffmanBits];
};

using zstd_gpu::kBaseline, zstd_gpu::kLiteralLengths, zstd_gpu::kMatchLengths;

// The highest `count` bits of a word, 0 to 31.
ZSTD_FUNCTION uint32_t highest(uint32_t word, uint32_t count) {
#ifdef __CUDA_ARCH__
  return __funnelshift_rc(word, 0, 32 - count);
#else
  return count ? word >> (32 - count) : 0;
#endif
}

ZSTD_FUNCTION uint32_t log2_floor(uint32_t value) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(value);
#else
  return 31 - __builtin_clz(value);
#endif
}

// Reads a bitstream from its last bit to its first, in aligned words of 8 bytes.
//
// The frame's header is longer than 7 bytes, so the first word, rounded down, is still inside the
// frame. The last one may not be and is put together from bytes. Bits before the first are zero or
// other bytes of the frame: whoever reads them finds `left()` negative.
class Bits {
 public:
  // `bytes` > 0, and the last byte is not 0.
  ZSTD_FUNCTION Bits(const uint8_t* from, uint32_t bytes) {
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) & 7);
    words_ = from - before;
    begin_ = static_cast<int32_t>(before * 8);
    const int32_t bits =
        static_cast<int32_t>((before + bytes - 1) * 8 + log2_floor(from[bytes - 1]));
    index_ = (bits + 63) / 64 - 1;
    used_ = static_cast<uint32_t>((index_ + 1) * 64 - bits);
    current_ = 0;
    const uint32_t last = static_cast<uint32_t>(index_ + 1) * 8;
    for (uint32_t at = last < before + bytes ? last : before + bytes; index_ >= 0 && at > last - 8;
         --at) {
      current_ = current_ << 8 | words_[at - 1];
    }
    next_ = word(index_ - 1);
    after_ = word(index_ - 2);
  }

  // The next 64 bits, the next one highest.
  ZSTD_FUNCTION uint64_t top() const { return current_ << used_ | next_ >> 1 >> (63 - used_); }

  // Goes on by `count` bits, at most 64.
  ZSTD_FUNCTION void skip(uint32_t count) {
    used_ += count;
    if (used_ >= 64) {
      used_ -= 64;
      --index_;
      current_ = next_;
      next_ = after_;
      after_ = word(index_ - 2);
    }
  }

  // How many bits are not read yet; negative if more were read than there are.
  ZSTD_FUNCTION int32_t left() const {
    return (index_ + 1) * 64 - static_cast<int32_t>(used_) - begin_;
  }

 private:
  ZSTD_FUNCTION uint64_t word(int32_t index) const {
    if (index < 0) return 0;
    uint64_t word;
#ifdef __CUDA_ARCH__
    const uint8_t* address = words_ + static_cast<int64_t>(index) * 8;
    word = __ldg(reinterpret_cast<const unsigned long long*>(address));
    // Twice per line of memory, and some sequences before the line is needed.
    if ((reinterpret_cast<uintptr_t>(address) & 63) == 56 && index >= kAhead) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(address - kAhead * 8));
    }
#else
    std::memcpy(&word, words_ + static_cast<int64_t>(index) * 8, 8);
#endif
    return word;
  }

  static constexpr int32_t kAhead = 32;

  const uint8_t* words_;
  int32_t begin_;  // bits of the first word that are not ours
  int32_t index_;  // of `current_`
  uint32_t used_;  // bits of `current_`, 0 to 63
  uint64_t current_, next_, after_;
};

// Length of the code that 11 bits start with: the longest codes come first.
ZSTD_FUNCTION uint32_t code_length(const uint16_t* code_ends, uint32_t bits) {
  uint32_t length = kHuffmanBits;
  while (bits >= code_ends[length]) --length;
  return length;
}

// Fills `Tables::codes`; lane `lane` of `lanes` does its share.
ZSTD_FUNCTION void fill_codes(uint8_t* codes, const uint16_t* code_ends, uint32_t lane,
                              uint32_t lanes) {
  constexpr uint32_t kCells = 1 << kHuffmanBits;
  for (uint32_t cell = lane; cell < kCells; cell += lanes) {
    uint32_t bits = 0, count = 0;
    for (;;) {
      // Bits beyond the cell's are taken for 0. A code that fits does not look at them.
      uint32_t length = code_length(code_ends, cell << bits & (kCells - 1));
      if (bits + length > kHuffmanBits) break;
      bits += length;
      ++count;
    }
    codes[cell] = static_cast<uint8_t>(bits | count << 4);
  }
}

// Checks that a Huffman stream is made of exactly `expected` codes.
ZSTD_FUNCTION uint32_t check_literals(const uint8_t* codes, const uint16_t* code_ends,
                                      const uint8_t* from, uint32_t bytes, uint32_t expected) {
  constexpr int kLookups = 64 / kHuffmanBits;
  Bits bits(from, bytes);
  uint32_t count = 0;
  while (bits.left() >= kLookups * kHuffmanBits) {
    uint64_t top = bits.top();
    uint32_t sum = 0, used = 0;
    for (int i = 0; i < kLookups; ++i) {
      const uint32_t found = codes[top >> (64 - kHuffmanBits)];
      top <<= found & 15;
      used += found & 15;
      sum += found;
    }
    bits.skip(used);
    count += (sum - used) >> 4;
  }
  while (bits.left() > 0) {
    const uint32_t cell = static_cast<uint32_t>(bits.top() >> (64 - kHuffmanBits));
    const uint32_t found = codes[cell];
    const uint32_t left = static_cast<uint32_t>(bits.left());
    if ((found & 15) <= left) {
      bits.skip(found & 15);
      count += found >> 4;
      continue;
    }
    const uint32_t length = code_length(code_ends, cell);
    if (length > left) return kStreamTruncated;
    bits.skip(length);
    ++count;
  }
  return count == expected ? kStreamOk : count < expected ? kStreamTruncated : kStreamTrailing;
}

// Checks stream `number` of a block's literals, if there is one.
ZSTD_FUNCTION uint32_t check_stream(const Tables& tables, const Block& block, const uint8_t* frame,
                                    int number) {
  const uint32_t bytes = block.stream_bytes[number];
  if (bytes == 0) return kStreamOk;
  const uint8_t* from = frame + block.literals_at;
  for (int i = 0; i < number; ++i) from += block.stream_bytes[i];
  uint32_t expected = block.literals;
  if (block.stream_bytes[1]) {
    const uint32_t share = (block.literals + 3) / 4;
    expected = number < 3 ? share : block.literals - 3 * share;
  }
  return check_literals(tables.codes, block.code_ends, from, bytes, expected);
}

// Builds an FSE decoding table from its normalized counts and uses them up. `lengths` is null for
// offset codes, whose number is that of their extra bits. RFC 8878, section 4.1.1.
ZSTD_FUNCTION void fill_states(uint32_t* states, int16_t* counts, int codes, uint32_t log,
                               const uint32_t* lengths) {
  const int size = 1 << log, step = (size >> 1) + (size >> 3) + 3;
  int high = size - 1;
  for (int code = 0; code < codes; ++code) {
    if (counts[code] == -1) states[high--] = static_cast<uint32_t>(code);
  }
  int at = 0;
  for (int code = 0; code < codes; ++code) {
    for (int i = 0; i < counts[code]; ++i) {
      states[at] = static_cast<uint32_t>(code);
      do {
        at = (at + step) & (size - 1);
      } while (at > high);
    }
    if (counts[code] == -1) counts[code] = 1;
  }
  for (int i = 0; i < size; ++i) {
    const uint32_t code = states[i];
    const uint32_t state = static_cast<uint16_t>(counts[code]++);
    const uint32_t bits = log - log2_floor(state);
    const uint32_t extra = lengths ? lengths[code] >> 24 : code;
    states[i] =
        bits | extra << 5 | ((state << bits) - static_cast<uint32_t>(size)) << 11 | code << 20;
  }
}

// Builds table `number` of the three that a block's sequences need.
ZSTD_FUNCTION void fill_states(Tables& tables, Block& block, int number) {
  if (block.sequences == 0) return;
  if (number == 0) {
    fill_states(tables.literal_states, block.literal_counts, kLiteralCodes, block.literal_log,
                kLiteralLengths);
  } else if (number == 1) {
    fill_states(tables.match_states, block.match_counts, kMatchCodes, block.match_log,
                kMatchLengths);
  } else {
    fill_states(tables.offset_states, block.offset_counts, kOffsetCodes, block.offset_log, nullptr);
  }
}

// Walks a block's sequences. `literal_lengths` and `match_lengths` are copies of the constants
// above.
ZSTD_FUNCTION void check_sequences(const Tables& tables, const Block& block, const uint8_t* frame,
                                   const uint32_t* literal_lengths, const uint32_t* match_lengths,
                                   Summary& summary) {
  summary.error = kStreamOk;
  for (uint32_t i = 0; i < kRepeats; ++i) {
    summary.slack[i] = kUnused;
    summary.above[i] = 0;
    summary.repeats[i] = kInitial + i * kStep;
  }
  summary.reach = 0;
  summary.bytes = block.literals;
  if (block.sequences == 0) return;

  Bits bits(frame + block.sequences_at, block.sequence_bytes);
  const uint32_t limit = block.limit, all_literals = block.literals;
  uint32_t repeat0 = summary.repeats[0], repeat1 = summary.repeats[1], repeat2 = summary.repeats[2];
  uint32_t position = 0, literals = 0;  // regenerated by the sequences so far
  int32_t reach = 0;
  uint64_t top = bits.top();
  const uint32_t literal_log = block.literal_log, match_log = block.match_log,
                 offset_log = block.offset_log;
  uint32_t literal_state = highest(static_cast<uint32_t>(top >> 32), literal_log);
  uint32_t offset_state = highest(static_cast<uint32_t>((top << literal_log) >> 32), offset_log);
  uint32_t match_state =
      highest(static_cast<uint32_t>((top << (literal_log + offset_log)) >> 32), match_log);
  bits.skip(literal_log + offset_log + match_log);

  for (uint32_t rest = block.sequences;;) {
    const uint32_t literal = tables.literal_states[literal_state];
    const uint32_t match = tables.match_states[match_state];
    const uint32_t offset_entry = tables.offset_states[offset_state];
    const uint32_t sum = literal + match + offset_entry;
    const uint32_t next_bits = sum & 31;  // at most 26
    uint32_t extra_bits = sum >> 5 & 63;  // at most 63
    top = bits.top();

    const uint32_t offset_bits = offset_entry >> 5 & 63, match_bits = match >> 5 & 63;
    const uint32_t value =
        (1u << offset_bits) + highest(static_cast<uint32_t>(top >> 32), offset_bits);
    uint64_t extra = top << offset_bits;
    const uint32_t match_length = (match_lengths[match >> 20] & kBaseline) +
                                  highest(static_cast<uint32_t>(extra >> 32), match_bits);
    extra <<= match_bits;
    const uint32_t literal_length = (literal_lengths[literal >> 20] & kBaseline) +
                                    highest(static_cast<uint32_t>(extra >> 32), literal >> 5 & 63);

    uint32_t offset;
    const uint32_t repeat = value - 1 + (literal_length == 0);
    if (value > 3) {
      offset = value - 3;
    } else {
      offset = repeat == 0 ? repeat0 : repeat == 1 ? repeat1 : repeat == 2 ? repeat2 : repeat0 - 1;
    }
    repeat2 = value > 3 || repeat >= 2 ? repeat1 : repeat2;
    repeat1 = value > 3 || repeat >= 1 ? repeat0 : repeat1;
    repeat0 = offset;

    literals += literal_length;
    position += literal_length;
    const bool bad_offset = offset == 0 || value >= kSymbolic;
    if (offset < kSymbolic) {
      const int32_t before = static_cast<int32_t>(offset - position);
      reach = before > reach ? before : reach;
    } else if (!bad_offset) {
      const uint32_t initial = (offset + kMargin - kInitial) / kStep;
      const uint32_t less = kInitial + initial * kStep - offset;
      if (position + less < summary.slack[initial]) summary.slack[initial] = position + less;
      if (less > summary.above[initial]) summary.above[initial] = less;
    }
    position += match_length;
    if (bad_offset || position > limit || literals > all_literals) {
      summary.error = bad_offset ? kStreamBadOffset : kStreamTooLong;
      return;
    }
    if (--rest == 0) {
      bits.skip(extra_bits);
      break;
    }

    if (extra_bits + next_bits > 64) {
      bits.skip(extra_bits);
      top = bits.top();
      extra_bits = 0;
    }
    uint32_t next = static_cast<uint32_t>((top << extra_bits) >> 32);
    const uint32_t literal_next = literal & 31, match_next = match & 31;
    literal_state = (literal >> 11 & 511) + highest(next, literal_next);
    next <<= literal_next;
    match_state = (match >> 11 & 511) + highest(next, match_next);
    next <<= match_next;
    offset_state = (offset_entry >> 11 & 511) + highest(next, offset_entry & 31);
    bits.skip(extra_bits + next_bits);
  }
  const int32_t left = bits.left();
  if (left != 0) summary.error = left < 0 ? kStreamTruncated : kStreamTrailing;
  summary.bytes = position + all_literals - literals;
  if (summary.bytes > limit) summary.error = kStreamTooLong;
  summary.reach = static_cast<uint32_t>(reach);
  summary.repeats[0] = repeat0;
  summary.repeats[1] = repeat1;
  summary.repeats[2] = repeat2;
}

// An offset at the end of a block, of which some may be symbolic.
ZSTD_FUNCTION uint32_t resolve(uint32_t offset, const uint32_t* repeats) {
  if (offset < kSymbolic) return offset;
  const uint32_t initial = (offset + kMargin - kInitial) / kStep;
  const uint32_t less = kInitial + initial * kStep - offset;
  return (initial == 0 ? repeats[0] : initial == 1 ? repeats[1] : repeats[2]) - less;
}

// Puts a frame's blocks together; a StreamError.
ZSTD_FUNCTION uint32_t check_frame(const Summary* summaries, uint32_t blocks, uint32_t to_bytes) {
  uint32_t repeats[kRepeats] = {1, 4, 8};
  uint32_t produced = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    const Summary summary = summaries[block];
    if (summary.error) return summary.error;
    bool bad = summary.reach > produced;
    uint32_t next[kRepeats];
    for (int i = 0; i < kRepeats; ++i) {
      bad |= summary.slack[i] != kUnused &&
             (repeats[i] > produced + summary.slack[i] || repeats[i] <= summary.above[i]);
      next[i] = resolve(summary.repeats[i], repeats);
    }
    if (bad) return kStreamBadOffset;
    for (int i = 0; i < kRepeats; ++i) repeats[i] = next[i];
    if (summary.bytes > to_bytes - produced) return kStreamTooLong;
    produced += summary.bytes;
  }
  return produced == to_bytes ? kStreamOk : kStreamTooShort;
}

}  // namespace zstd
