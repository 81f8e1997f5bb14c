#pragma once
// Copies the headers of an encoded chunk from the GPU to host memory, each byte to the place that
// it has in the chunk: all that src/codec reads there to plan the decoding. Where cuFile reads a
// chunk straight to the GPU, nothing else of it passes the host.
//
// What is copied has to cover what src/codec/zstd, blosc.rs, lz4.rs, snappy.rs and zlib.rs read, up
// to the first thing for which they refuse a chunk or leave it to the CPU. tests/zstd_check.rs
// compares what they make of these bytes and of the whole chunk.
//
// Sizes come from the chunk itself, which may be damaged: nothing outside of it is read or written,
// and each loop has a bound. Source: RFC 8878, section 3.1.1; c-blosc 1.21,
// README_CHUNK_FORMAT.rst.

#include <cstdint>

#include "warp_each.cuh"

namespace headers {

/// By number the `HeaderFormat` of src/codec/compression.rs.
enum Format : uint32_t { kEnds = 0, kZstd = 1, kBlosc = 2 };

/// An encoded chunk and where its headers go. Both have `bytes` bytes.
struct Chunk {
  const uint8_t* from;
  uint8_t* to;
  uint32_t bytes;
  uint32_t decoded_bytes;  // what it has to decode to
  uint32_t format;
};

/// Frames of more blocks are left to the CPU, whose headers need not be copied: `max_gpu_blocks` of
/// src/codec/zstd/mod.rs.
WARP_FN uint32_t most_blocks(uint32_t decoded_bytes) { return 16 + decoded_bytes / 8192; }
/// So are Blosc containers of more streams: `max_gpu_streams` of src/codec/blosc.rs.
WARP_FN uint32_t most_streams(uint32_t decoded_bytes) { return 64 + decoded_bytes / 512; }

/// Copied at the beginning and the end of whatever has a header or trailer there: a zstd frame's
/// header has 18 bytes, its checksum 4, what other codecs read is shorter.
constexpr uint32_t kEndBytes = 32;
constexpr uint32_t kBlockHeaderBytes = 3;
/// In a compressed block: the header of its literals, up to 5 bytes; a Huffman tree, a byte and up
/// to 127 more; the sizes of three streams.
constexpr uint32_t kLiteralHeaderBytes = 5 + 129 + 6;
/// How many sequences and their modes, up to 4 bytes; three FSE tables of 36, 53 and 32 codes, each
/// of up to 10 bits and 2 that say how many follow which do not occur; and rounding up.
constexpr uint32_t kSequenceHeaderBytes = 4 + (36 + 53 + 32) * 12 / 8 + 8;
constexpr uint32_t kMagic = 0xFD2FB528;

/// The number of `size` up to 4 bytes at `at`; 0 where they are not all before `end`.
WARP_FN uint32_t little_endian(const Chunk& chunk, uint32_t at, uint32_t size, uint32_t end) {
  if (at > end || end - at < size) return 0;
  uint32_t value = 0;
  for (uint32_t i = 0; i < size; ++i) value |= uint32_t{chunk.from[at + i]} << 8 * i;
  return value;
}

/// Copies up to `size` bytes from `at` on, as far as they are before `end`. For a warp.
template <class W>
WARP_FN void copy(const Chunk& chunk, uint32_t at, uint32_t size, uint32_t end) {
  if (at >= end) return;
  const uint32_t count = end - at < size ? end - at : size;
  W::each([&](uint32_t lane) {
    for (uint32_t i = lane; i < count; i += warp::kLanes) chunk.to[at + i] = chunk.from[at + i];
  });
}

/// Copies the last byte of a bitstream, which has the mark of its end.
template <class W>
WARP_FN void copy_mark(const Chunk& chunk, uint32_t stream_end, uint32_t end) {
  if (stream_end > 0) copy<W>(chunk, stream_end - 1, 1, end);
}

/// Copies the headers in a compressed block.
template <class W>
WARP_FN void copy_block(const Chunk& chunk, uint32_t at, uint32_t end) {
  copy<W>(chunk, at, kLiteralHeaderBytes, end);
  copy_mark<W>(chunk, end, end);
  const uint32_t first = little_endian(chunk, at, 1, end), kind = first & 3,
                 format = first >> 2 & 3;
  uint32_t sequences = 0;
  if (kind < 2) {
    const uint32_t size = format == 1 ? 2 : format == 3 ? 3 : 1;
    const uint32_t literals = little_endian(chunk, at, size, end) >> (size == 1 ? 3 : 4);
    sequences = at + size + (kind == 0 ? literals : 1);
  } else {
    // Two numbers of 10, 14 or 18 bits.
    const uint32_t size = format < 2 ? 3 : format + 2, bits = 4 * size - 2;
    const uint64_t header = little_endian(chunk, at, size < 4 ? size : 4, end) |
                            uint64_t{size > 4 ? little_endian(chunk, at + 4, 1, end) : 0} << 32;
    sequences = at + size + static_cast<uint32_t>(header >> (4 + bits));
    if (format > 0) {
      const uint32_t tree = kind == 2 ? little_endian(chunk, at + size, 1, end) : 0;
      const uint32_t tree_bytes = kind == 3 ? 0 : 1 + (tree < 128 ? tree : (tree - 126) / 2);
      const uint32_t sizes = at + size + tree_bytes;
      uint32_t stream_end = sizes + 6;
      for (uint32_t i = 0; i < 3; ++i) {
        stream_end += little_endian(chunk, sizes + 2 * i, 2, end);
        copy_mark<W>(chunk, stream_end, end);
      }
    }
    copy_mark<W>(chunk, sequences, end);
  }
  copy<W>(chunk, sequences, kSequenceHeaderBytes, end);
}

/// Copies the headers of the zstd frame at `at`, and what follows its last block.
template <class W>
WARP_FN void copy_frame(const Chunk& chunk, uint32_t at, uint32_t end, uint32_t decoded_bytes) {
  copy<W>(chunk, at, kEndBytes, end);
  if (little_endian(chunk, at, 4, end) != kMagic) return;
  const uint32_t descriptor = little_endian(chunk, at + 4, 1, end), declares = descriptor >> 6;
  const uint32_t single = descriptor >> 5 & 1, dictionary = (1u << (descriptor & 3)) >> 1;
  at += 5 + (1 - single) + dictionary + (declares > 0 || single ? 1u << declares : 0);
  // The host stops at the first block too many.
  for (uint32_t block = 0; block <= most_blocks(decoded_bytes); ++block) {
    copy<W>(chunk, at, kBlockHeaderBytes, end);
    if (at > end || end - at < kBlockHeaderBytes) return;
    const uint32_t header = little_endian(chunk, at, kBlockHeaderBytes, end),
                   kind = header >> 1 & 3;
    const uint32_t bytes = kind == 1 ? 1 : header >> 3;
    at += kBlockHeaderBytes;
    if (bytes > end - at) return;
    if (kind == 2) copy_block<W>(chunk, at, at + bytes);
    at += bytes;
    if (header & 1) break;
  }
  copy<W>(chunk, at, kEndBytes, end);
}

/// Copies the headers in a Blosc container, warp `warp` of `warps` those of its blocks.
template <class W>
WARP_FN void copy_container(const Chunk& chunk, uint32_t warp, uint32_t warps) {
  constexpr uint32_t kHeaderBytes = 16, kMostSplits = 16, kLeastSplitBytes = 128;
  constexpr uint32_t kFormat = 2, kCopied = 0x02, kNotSplit = 0x10;
  const uint32_t end = chunk.bytes;
  if (end < kHeaderBytes || chunk.from[0] != kFormat || little_endian(chunk, 12, 4, end) != end)
    return;
  const uint32_t flags = chunk.from[2], element_bytes = chunk.from[3];
  if (flags & kCopied) return;
  const uint32_t decoded = little_endian(chunk, 4, 4, end),
                 block_bytes = little_endian(chunk, 8, 4, end);
  if (element_bytes == 0 || block_bytes == 0 || block_bytes > decoded ||
      decoded != chunk.decoded_bytes)
    return;
  const uint32_t count = decoded / block_bytes + (decoded % block_bytes > 0);
  const bool split = !(flags & kNotSplit) && element_bytes <= kMostSplits &&
                     block_bytes / element_bytes >= kLeastSplitBytes;
  const uint32_t splits = split ? element_bytes : 1;
  if (count > most_streams(decoded) / splits || count > (end - kHeaderBytes) / 4) return;
  for (uint32_t block = warp; block < count; block += warps) {
    const uint32_t entry = kHeaderBytes + 4 * block;
    copy<W>(chunk, entry, 4, end);
    uint32_t at = little_endian(chunk, entry, 4, end);
    // A block that is cut short by the end of the content is never split.
    const uint32_t rest = block + 1 == count ? decoded % block_bytes : 0;
    const uint32_t stream_bytes = rest > 0 ? rest : block_bytes / splits;
    for (uint32_t i = 0; i < (rest > 0 ? 1 : splits); ++i) {
      copy<W>(chunk, at, 4, end);
      if (at > end || end - at < 4) return;
      const uint32_t bytes = little_endian(chunk, at, 4, end);
      at += 4;
      if (bytes > end - at) return;
      copy_frame<W>(chunk, at, at + bytes, stream_bytes);
      at += bytes;
      if (bytes >= kEndBytes) copy<W>(chunk, at - kEndBytes, kEndBytes, at);
    }
  }
}

/// Copies the headers of a chunk, by `warps` warps, of which this is number `warp`.
template <class W>
WARP_FN void copy_headers(const Chunk& chunk, uint32_t warp, uint32_t warps) {
  const uint32_t end = chunk.bytes;
  if (warp == 0) {
    copy<W>(chunk, 0, kEndBytes, end);
    copy<W>(chunk, end < kEndBytes ? 0 : end - kEndBytes, kEndBytes, end);
    if (chunk.format == kZstd) copy_frame<W>(chunk, 0, end, chunk.decoded_bytes);
  }
  if (chunk.format == kBlosc) copy_container<W>(chunk, warp, warps);
}

}  // namespace headers
