#pragma once
// What the zstd kernels need to know of a chunk: its blocks, with every header and table
// description read.
//
// A chunk is any number of zstd frames, one after the other; skippable frames have no blocks. The
// kernels take the blocks of all chunks of a launch as one array, and decode them in four stages:
//
//   entropy   zstd_fse.cuh, zstd_huffman.cuh   bits -> packed states of each sequence; literals
//   resolve   zstd_resolve.cuh                 states -> lengths and offsets, a block on its own
//   chain     zstd_resolve.cuh                 blocks of a chunk put together, every limit checked
//   execute   zstd_tiles.cuh                   literals and matches -> the decoded bytes
//
// No stage needs the host between it and the next: all sizes of scratch memory follow from the
// headers. Source: RFC 8878, section 3.1.1 (frames and blocks).

#include <cstdint>

#include "streams.cuh"
#include "warp_each.cuh"

namespace zstd_gpu {

constexpr uint32_t kLiteralCodes = 36, kMatchCodes = 53, kOffsetCodes = 32;
constexpr uint32_t kMaxLengthLog = 9, kMaxOffsetLog = 8;
constexpr uint32_t kHuffmanBits = 11;
constexpr uint32_t kSymbols = 256;
constexpr uint32_t kRepeats = 3;
/// Block_Maximum_Size: no block regenerates more.
constexpr uint32_t kMaxBlockBytes = 128 << 10;
/// Chunks are smaller: an offset has 29 bits in a record.
constexpr uint32_t kMaxChunkBytes = 1u << 29;
/// Sequences that one warp resolves and executes at once.
constexpr uint32_t kGroup = 32;

enum LiteralKind : uint8_t { kRawLiterals = 0, kRleLiterals = 1, kHuffmanLiterals = 2 };

constexpr uint32_t kNotDeclared = 0xFFFFFFFF;

/// One block, field for field the `Block` of src/codec/zstd/blocks.rs. Offsets count from the
/// chunk's first byte. A raw or RLE block is one of literals without sequences.
struct alignas(16) Block {
  uint32_t limit;        // the most bytes that it may regenerate
  uint32_t literals;     // how many literals it regenerates
  uint32_t literals_at;  // where the raw ones, the repeated one or the first Huffman stream begin
  uint32_t stream_bytes[4];  // sizes of the Huffman streams: none, one or four of them
  uint32_t sequences;        // how many
  uint32_t sequences_at;     // where their bitstream begins
  uint32_t sequence_bytes;   // its size
  uint32_t
      content_bytes;  // what its frame has to decode to, or kNotDeclared; of a frame's first block
  uint32_t chunk;     // number of its chunk in the launch
  // Where its own part of the scratch memory begins, each in units of 16 bytes.
  uint32_t literals_to, records_to, groups_to;
  uint8_t first_of_frame;
  uint8_t literal_kind;
  uint8_t huffman_log;
  uint8_t symbols;  // of the Huffman tree, less 1
  // The FSE tables, if there are sequences: how many of the 1 << log states each code has; -1
  // stands for one at the end. A table of one code, given as such, has log 0.
  uint8_t literal_log, match_log, offset_log, padding;
  int16_t literal_counts[kLiteralCodes], match_counts[kMatchCodes], offset_counts[kOffsetCodes];
  uint8_t weights[kSymbols / 2];  // of the Huffman tree; the lower half of a byte comes first
  uint16_t code_ends[kHuffmanBits + 1];  // of the Huffman codes, for zstd_check.cuh only
  uint8_t padding_at_end[2];
};
static_assert(sizeof(Block) == 464, "mirrored in Rust");

/// One chunk, field for field the `ChunkOfFrames` of src/gpu/zstd.rs: its encoded bytes and where
/// the decoded ones go.
struct Chunk {
  uint64_t from;  // address of the encoded bytes, any alignment
  uint64_t to;    // address of the decoded bytes, any alignment
  uint64_t
      status;  // address of a uint32_t: 0 stays if all is well; else a StreamError | block << 8
  uint32_t from_bytes;   // nothing outside is ever read
  uint32_t to_bytes;     // what it has to decode to; nothing outside is ever written
  uint32_t first_block;  // number of its first block in the launch
  uint32_t blocks;
};
static_assert(sizeof(Chunk) == 40, "mirrored in Rust");

/// What a block needs of what came before it, and what it leaves. Written by resolve, read by
/// chain.
struct alignas(16) Summary {
  uint32_t huffman_error, error;  // StreamErrors of the stages
  uint32_t bytes;                 // regenerated
  uint32_t sequence_bytes,
      sequence_literals;  // what sequences regenerate, and how many literals they take
  uint32_t reach;         // a match starts so many bytes before the block
  // Initial repeat offset i is used, if slack[i] < kUnused: it may be at most slack[i] more than
  // what was produced before in the frame, and must be more than above[i].
  uint32_t slack[kRepeats], above[kRepeats];
  uint32_t repeats[kRepeats];  // at the end
  // Written by chain: where in the chunk the block goes, and the repeat offsets that it begins
  // with.
  uint32_t base, initial[kRepeats];
  uint32_t padding[5];
};
static_assert(sizeof(Summary) == 96, "mirrored in Rust");

/// The arrays of a launch.
struct Launch {
  const Chunk* chunks;
  const Block* blocks;
  Summary* summaries;  // one for each block; zeros
  warp::Wide* literals;
  warp::Wide* records;
  warp::Wide* groups;
  uint32_t chunk_count, block_count;
};

/// Scratch memory of a block, in units of 16 bytes. Known from its headers.
struct ScratchSize {
  uint32_t literals, records, groups;
};

WARP_BOTH uint32_t round_up(uint32_t value, uint32_t unit) {
  return (value + unit - 1) / unit * unit;
}

WARP_BOTH ScratchSize scratch_size(const Block& block) {
  return {block.literal_kind == kHuffmanLiterals ? (block.literals + 15) / 16 : 0,
          round_up(block.sequences, 4) / 2, ((block.sequences + kGroup - 1) / kGroup + 1) / 2};
}

/// A resolved sequence. Bits 0 to 16: where its literals begin in the decoded bytes of its group;
/// 17 to 33: how many literals of the group come before; 34 to 63: offset, or with kFromInitial the
/// initial repeat offset (bits 27 and 28 of it) less a number.
using Record = uint64_t;
constexpr uint32_t kPlaceBits = 17, kMinMatch = 3;
constexpr uint32_t kFromInitial = 1u << 29, kInitialShift = 27;

/// Where a group of sequences begins in its block.
struct alignas(8) Group {
  uint32_t bytes, literals;
};

/// Baseline | extra bits << 24, by code. RFC 8878, section 3.1.1.3.2.1.1.
WARP_CONSTANT uint32_t kLiteralLengths[kLiteralCodes] = {
    0,         1,         2,         3,         4,         5,         6,         7,
    8,         9,         10,        11,        12,        13,        14,        15,
    0x1000010, 0x1000012, 0x1000014, 0x1000016, 0x2000018, 0x200001c, 0x3000020, 0x3000028,
    0x4000030, 0x6000040, 0x7000080, 0x8000100, 0x9000200, 0xa000400, 0xb000800, 0xc001000,
    0xd002000, 0xe004000, 0xf008000, 0x10010000};
WARP_CONSTANT uint32_t kMatchLengths[kMatchCodes] = {
    3,         4,         5,         6,         7,         8,         9,         10,
    11,        12,        13,        14,        15,        16,        17,        18,
    19,        20,        21,        22,        23,        24,        25,        26,
    27,        28,        29,        30,        31,        32,        33,        34,
    0x1000023, 0x1000025, 0x1000027, 0x1000029, 0x200002b, 0x200002f, 0x3000033, 0x300003b,
    0x4000043, 0x4000053, 0x5000063, 0x7000083, 0x8000103, 0x9000203, 0xa000403, 0xb000803,
    0xc001003, 0xd002003, 0xe004003, 0xf008003, 0x10010003};
constexpr uint32_t kBaseline = (1 << 24) - 1;

/// The bits of a stream that is read from its last bit to its first.
///
/// They are numbered from the 16-byte boundary at or below the first byte, `first` to `end`; the
/// stream's mark, the highest bit of its last byte, is number `end`.
struct BitRange {
  const uint8_t* base;  // aligned to 16 bytes
  int32_t first, end;
  /// Bytes of the chunk around the stream, as numbers from `base`: nothing else is read.
  int32_t readable_from, readable_to;

  /// The stream of `bytes` > 0 bytes at `at`, the last of which is not 0.
  WARP_FN static BitRange of(const Chunk& chunk, uint32_t at, uint32_t bytes) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(chunk.from) + at;
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) & 15);
    return {from - before, static_cast<int32_t>(before * 8),
            static_cast<int32_t>((before + bytes - 1) * 8 + warp::log2_floor(from[bytes - 1])),
            static_cast<int32_t>(before) - static_cast<int32_t>(at),
            static_cast<int32_t>(before + (chunk.from_bytes - at))};
  }

  /// 4 bytes at `index` * 4; bytes that are not the chunk's read as 0.
  WARP_FN uint32_t word(int32_t index) const {
    const int32_t at = index * 4;
    if (at >= readable_from && at + 4 <= readable_to) {
      return *reinterpret_cast<const uint32_t*>(base + at);
    }
    uint32_t word = 0;
    WARP_NO_UNROLL
    for (int32_t i = 3; i >= 0; --i) {
      word = word << 8 | (at + i >= readable_from && at + i < readable_to ? base[at + i] : 0u);
    }
    return word;
  }
  WARP_FN bool readable(int32_t at, int32_t bytes) const {
    return at >= readable_from && at + bytes <= readable_to;
  }
};

/// Begins to copy a piece of 16 bytes of a stream to shared memory; of one that is not the chunk's
/// alone, what is.
template <class W>
WARP_FN void copy_piece(uint32_t* to, const BitRange& bits, int32_t piece) {
  if (bits.readable(piece * 16, 16)) {
    W::copy_wide(reinterpret_cast<warp::Wide*>(to),
                 reinterpret_cast<const warp::Wide*>(bits.base + piece * 16));
    return;
  }
  WARP_NO_UNROLL
  for (int32_t i = 0; i < 4; ++i) to[i] = bits.word(piece * 4 + i);
}

}  // namespace zstd_gpu
