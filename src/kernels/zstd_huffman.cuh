#pragma once
// Decodes the Huffman streams of blocks' literals.
//
//   build the cells: for the next 11 bits, the symbol and how many bits its code has
//   until all streams are decoded:
//     copy bits ahead into rings of shared memory, those of the step before have arrived
//     16 lookups -> 16 symbols, in one store
//
// Lane 4 i + s of a warp decodes stream s of its block i. Words of the rings are interleaved by
// lanes, so that lanes that are equally far do not meet in a bank.

#include "zstd_block.cuh"

namespace zstd_gpu {

constexpr uint32_t kCells = 1 << kHuffmanBits;
constexpr uint32_t kStreams = 4;
constexpr uint32_t kHuffmanRingWords = 32;
/// Symbols between two looks at the ring, and the words that they may need.
constexpr uint32_t kHuffmanStep = 16, kHuffmanNeedWords = kHuffmanStep * kHuffmanBits / 32 + 3;
/// Most words that are copied in a step.
constexpr uint32_t kHuffmanBatch = 8;
static_assert(kHuffmanNeedWords + kHuffmanBatch < kHuffmanRingWords,
              "the ring holds a step and a batch");

/// Shared memory of a block; the rings of the warp's blocks are one array of words, then lanes.
struct HuffmanCells {
  uint16_t cells[kCells];  // length of the code | symbol << 8
};
constexpr uint32_t kHuffmanSlotBytes =
    sizeof(HuffmanCells) + kStreams * kHuffmanRingWords * sizeof(uint32_t);

/// The blocks that a warp decodes at once: `count` from `first` on, in `slots`, 1 to 8.
struct HuffmanWork {
  const Launch& launch;
  uint8_t* shared;  // kHuffmanSlotBytes for each slot, aligned to 16 bytes
  uint32_t first, count, slots;

  WARP_FN const Block& block(uint32_t slot) const { return launch.blocks[first + slot]; }
  WARP_FN uint16_t* cells(uint32_t slot) const {
    return reinterpret_cast<HuffmanCells*>(shared)[slot].cells;
  }
  WARP_FN uint32_t* ring(uint32_t lane) const {
    return reinterpret_cast<uint32_t*>(shared + slots * sizeof(HuffmanCells)) + lane;
  }
  WARP_FN uint32_t ring_stride() const { return slots * kStreams; }
};

/// Fills a block's cells; lane `number` of `lanes` does its share. The longest codes come first,
/// those of a length by their symbols. RFC 8878, section 4.2.1.3.
WARP_FN void build_cells(uint16_t* cells, const Block& block, uint32_t number, uint32_t lanes) {
  uint32_t at = 0;
  for (uint32_t weight = 1; weight <= block.huffman_log; ++weight) {
    const uint32_t length = block.huffman_log + 1 - weight, span = 1u << (weight - 1);
    for (uint32_t symbol = 0; symbol <= block.symbols; ++symbol) {
      if ((block.weights[symbol / 2] >> symbol % 2 * 4 & 15) != weight) continue;
      for (uint32_t i = number; i < span; i += lanes) {
        cells[at + i] = static_cast<uint16_t>(length | symbol << 8);
      }
      at += span;
    }
  }
}

/// Where a lane is in its stream.
struct HuffmanState {
  BitRange bits;
  int32_t left;            // bits up to number left - 1 are not read yet
  int32_t lowest, copied;  // first word of the stream; the last one that was asked for
  uint8_t* to;
  uint32_t rest;  // symbols

  WARP_FN bool is_short() const {
    return rest > 0 && copied > lowest && left - copied * 32 < int32_t{kHuffmanNeedWords * 32};
  }
};

/// What a lane reads: its ring and its block's cells.
struct HuffmanTables {
  const uint16_t* cells;
  uint32_t* ring;
  uint32_t stride, index_shift;

  WARP_FN uint32_t word(int32_t index) const {
    return ring[(static_cast<uint32_t>(index) % kHuffmanRingWords) * stride];
  }
};

template <class W>
WARP_FN void copy_words_ahead(const HuffmanTables& tables, HuffmanState& state, uint32_t most) {
  const int32_t last_in_use = (state.left - 1) >> 5;
  WARP_NO_UNROLL
  for (uint32_t i = 0; i < most; ++i) {
    const int32_t word = state.copied - 1;
    if (word < state.lowest || word + int32_t{kHuffmanRingWords} <= last_in_use) return;
    uint32_t* to = tables.ring + (static_cast<uint32_t>(word) % kHuffmanRingWords) * tables.stride;
    if (state.bits.readable(word * 4, 4)) {
      W::copy_word(to, reinterpret_cast<const uint32_t*>(state.bits.base + word * 4));
    } else {
      *to = state.bits.word(word);
    }
    state.copied = word;
  }
}

/// Goes on by a symbol, from the 64 bits that come next; its cell.
WARP_FN uint32_t next_cell(const HuffmanTables& tables, uint32_t& high, uint32_t& low) {
  const uint32_t cell = tables.cells[high >> tables.index_shift];
  // By the length modulo 32, which is the cell modulo 32.
  high = warp::shift_left(low, high, cell);
  low = warp::shift_left(0, low, cell);
  return cell;
}

/// The next 4 symbols, the first one lowest.
WARP_FN uint32_t next_symbols(const HuffmanTables& tables, HuffmanState& state) {
  const int32_t last = (state.left - 1) >> 5;
  const uint32_t above = static_cast<uint32_t>(-state.left);
  const uint32_t words[3] = {tables.word(last), tables.word(last - 1), tables.word(last - 2)};
  uint32_t high = warp::shift_left(words[1], words[0], above);
  uint32_t low = warp::shift_left(words[2], words[1], above);
  uint32_t cells[4], used = 0;
  WARP_UNROLL
  for (uint32_t& cell : cells) {
    cell = next_cell(tables, high, low);
    used += cell;
  }
  state.left -= static_cast<int32_t>(used & 255);
  return warp::second_bytes(cells);
}

/// The next symbol.
WARP_FN uint8_t next_symbol(const HuffmanTables& tables, HuffmanState& state) {
  const int32_t last = (state.left - 1) >> 5;
  uint32_t high = warp::shift_left(tables.word(last - 1), tables.word(last),
                                   static_cast<uint32_t>(-state.left));
  uint32_t low = 0;
  const uint32_t cell = next_cell(tables, high, low);
  state.left -= static_cast<int32_t>(cell & 255);
  return static_cast<uint8_t>(cell >> 8);
}

/// Decodes up to 16 symbols: to an aligned place, or few at the ends.
WARP_FN void decode_step(const HuffmanTables& tables, HuffmanState& state) {
  const uint32_t offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(state.to) & 15);
  uint32_t count = kHuffmanStep - offset;
  if (count > state.rest) count = state.rest;
  if (count == kHuffmanStep) {
    warp::Wide symbols;
    WARP_UNROLL
    for (uint32_t& word : symbols.words) word = next_symbols(tables, state);
    *reinterpret_cast<warp::Wide*>(state.to) = symbols;
  } else {
    WARP_NO_UNROLL
    for (uint32_t i = 0; i < count; ++i) {
      state.to[i] = next_symbol(tables, state);
    }
  }
  state.to += count;
  state.rest -= count;
}

/// Begins stream `number` of a block, if there is one.
WARP_FN void begin_stream(const Launch& launch, const Block& block, uint32_t number,
                          HuffmanState& state) {
  state.rest = 0;
  if (block.literal_kind != kHuffmanLiterals || block.stream_bytes[number] == 0) return;
  uint32_t at = block.literals_at;
  for (uint32_t i = 0; i < number; ++i) at += block.stream_bytes[i];
  const uint32_t share = block.stream_bytes[1] ? (block.literals + 3) / 4 : block.literals;
  state.bits = BitRange::of(launch.chunks[block.chunk], at, block.stream_bytes[number]);
  state.left = state.bits.end;
  state.lowest = state.bits.first >> 5;
  state.copied = (state.bits.end >> 5) + 1;
  state.to = reinterpret_cast<uint8_t*>(launch.literals + block.literals_to) + number * share;
  state.rest = number < 3 ? share : block.literals - 3 * share;
}

template <class W>
WARP_FN void decode_literals(const HuffmanWork& work) {
  const uint32_t lanes = warp::kLanes / work.slots;
  W::each([&](uint32_t lane) {
    const uint32_t slot = lane / lanes;
    if (slot >= work.count || work.block(slot).literal_kind != kHuffmanLiterals) return;
    build_cells(work.cells(slot), work.block(slot), lane % lanes, lanes);
  });
  typename W::template Var<HuffmanState> states;
  typename W::template Var<HuffmanTables> all_tables;
  typename W::template Var<bool> flags;
  W::each([&](uint32_t lane) {
    HuffmanState& state = states[lane];
    state.rest = 0;
    const uint32_t slot = lane / kStreams;
    if (slot >= work.count) return;
    const Block& block = work.block(slot);
    begin_stream(work.launch, block, lane % kStreams, state);
    all_tables[lane] = {work.cells(slot), work.ring(lane), work.ring_stride(),
                        32u - block.huffman_log};
    if (state.rest) copy_words_ahead<W>(all_tables[lane], state, kHuffmanRingWords);
  });
  W::wait_for_copies();
  W::sync();

  for (;;) {
    W::each([&](uint32_t lane) { flags[lane] = states[lane].rest > 0; });
    if (!W::any(flags)) return;
    W::each([&](uint32_t lane) {
      HuffmanState& state = states[lane];
      if (state.rest == 0) return;
      const HuffmanTables& tables = all_tables[lane];
      while (state.is_short()) {
        copy_words_ahead<W>(tables, state, kHuffmanBatch);
        W::wait_for_copies();
      }
      copy_words_ahead<W>(tables, state, kHuffmanBatch);
      decode_step(tables, state);
      if (state.rest == 0 && state.left != state.bits.first) {
        W::raise(&work.launch.summaries[work.first + lane / kStreams].huffman_error,
                 state.left < state.bits.first ? kStreamTruncated : kStreamTrailing);
      }
      W::wait_for_copies();
    });
  }
}

}  // namespace zstd_gpu
