#pragma once
// Decodes the Huffman streams of blocks' literals.
//
//   build the cells: for the next 11 bits, the symbol and how many bits its code has
//   until all streams are decoded:
//     begin to copy bits into rings of shared memory; those of the step before have arrived
//     16 lookups -> 16 symbols, in one store
//
// Lane 4 i + s of a warp decodes stream s of its block i.

#include "zstd_block.cuh"

namespace zstd_gpu {

constexpr uint32_t kCells = 1 << kHuffmanBits;
constexpr uint32_t kStreams = 4;
/// A lane's ring: pieces of 16 bytes, and one more that is not used, so that lanes which are
/// equally far do not all meet in a bank.
constexpr uint32_t kHuffmanPieces = 8, kHuffmanRingWords = 4 * kHuffmanPieces;
constexpr uint32_t kHuffmanStride = kHuffmanRingWords + 4;
/// Symbols of a step, and pieces that are asked for in one.
constexpr uint32_t kHuffmanStep = 16, kHuffmanBatch = 2;
static_assert(kHuffmanStep * kHuffmanBits <= kHuffmanBatch * 128, "a step asks for what it takes");
// Of a full ring, the first piece is partly used up, the last one may be missing, and the last
// batch is on its way. A lookup of 4 symbols reads 3 words.
static_assert(kHuffmanStep * kHuffmanBits + 3 * 32 <= (kHuffmanPieces - 2 - kHuffmanBatch) * 128,
              "what a step takes was asked for before");

/// Shared memory of a block; the rings of the warp's blocks lie behind all cells. Before the rings
/// are filled, those of a block hold the places of its symbols.
struct HuffmanCells {
  uint16_t cells[kCells];  // length of the code | symbol << 8
};
constexpr uint32_t kHuffmanRingBytes = kStreams * kHuffmanStride * sizeof(uint32_t);
constexpr uint32_t kHuffmanSlotBytes = sizeof(HuffmanCells) + kHuffmanRingBytes;
constexpr uint32_t kMostWeights = 16;
static_assert((kSymbols + kMostWeights) * sizeof(uint16_t) <= kHuffmanRingBytes, "places fit");

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
    return reinterpret_cast<uint32_t*>(shared + slots * sizeof(HuffmanCells)) +
           lane * kHuffmanStride;
  }
  WARP_FN uint16_t* places(uint32_t slot) const {
    return reinterpret_cast<uint16_t*>(ring(slot * kStreams));
  }
};

/// The weight of a symbol: a code has 1 bit more than the tree's log less it; 0 stands for none.
WARP_FN uint32_t weight_of(const Block& block, uint32_t symbol) {
  return block.weights[symbol / 2] >> symbol % 2 * 4 & 15;
}

/// Finds the first cell of each symbol. The longest codes come first, those of a length by their
/// symbols. RFC 8878, section 4.2.1.3.
WARP_FN void place_symbols(uint16_t* places, const Block& block) {
  uint16_t* next = places + kSymbols;  // by weight
  const uint32_t symbols = block.symbols;
  for (uint32_t weight = 0; weight < kMostWeights; ++weight) next[weight] = 0;
  for (uint32_t symbol = 0; symbol <= symbols; ++symbol) {
    const uint32_t weight = weight_of(block, symbol);
    next[weight] = static_cast<uint16_t>(next[weight] + (1u << weight >> 1));
  }
  uint32_t at = 0;
  for (uint32_t weight = 0; weight < kMostWeights; ++weight) {
    const uint32_t cells = next[weight];
    next[weight] = static_cast<uint16_t>(at);
    at += cells;
  }
  for (uint32_t symbol = 0; symbol <= symbols; ++symbol) {
    const uint32_t weight = weight_of(block, symbol), place = next[weight];
    places[symbol] = static_cast<uint16_t>(place);
    next[weight] = static_cast<uint16_t>(place + (1u << weight >> 1));
  }
}

/// Fills the cells of a block's symbols; lane `number` of `lanes` does its share.
WARP_FN void build_cells(uint16_t* cells, const uint16_t* places, const Block& block,
                         uint32_t number, uint32_t lanes) {
  const uint32_t symbols = block.symbols, log = block.huffman_log;
  for (uint32_t symbol = number; symbol <= symbols; symbol += lanes) {
    const uint32_t weight = weight_of(block, symbol);
    if (weight == 0 || weight > log) continue;
    uint16_t* to = cells + places[symbol];
    const uint32_t span = 1u << (weight - 1);
    const uint16_t cell = static_cast<uint16_t>((log + 1 - weight) | symbol << 8);
    for (uint32_t i = 0; i < span; ++i) to[i] = cell;
  }
}

/// Where a lane is in its stream.
struct HuffmanState {
  BitRange bits;
  int32_t left;            // bits up to number left - 1 are not read yet
  int32_t lowest, copied;  // first piece of the stream; the last one that was asked for
  uint8_t* to;
  uint32_t rest;  // symbols
};

/// What a lane reads: its ring and its block's cells.
struct HuffmanTables {
  const uint16_t* cells;
  uint32_t* ring;
  uint32_t index_shift;

  WARP_FN uint32_t word(int32_t index) const {
    return ring[static_cast<uint32_t>(index) % kHuffmanRingWords];
  }
};

/// Asks for pieces, `most` of them at most, as far as the ring has room.
template <class W>
WARP_FN void copy_pieces_ahead(const HuffmanTables& tables, HuffmanState& state, uint32_t most) {
  const int32_t last_in_use = (state.left - 1) >> 7;
  WARP_NO_UNROLL
  for (uint32_t i = 0; i < most; ++i) {
    const int32_t piece = state.copied - 1;
    if (piece < state.lowest || piece + int32_t{kHuffmanPieces} <= last_in_use) return;
    copy_piece<W>(tables.ring + static_cast<uint32_t>(piece) % kHuffmanPieces * 4, state.bits,
                  piece);
    state.copied = piece;
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
  state.lowest = state.bits.first >> 7;
  state.copied = (state.bits.end >> 7) + 1;
  state.to = reinterpret_cast<uint8_t*>(launch.literals + block.literals_to) + number * share;
  state.rest = number < 3 ? share : block.literals - 3 * share;
}

template <class W>
WARP_FN void decode_literals(const HuffmanWork& work) {
  const uint32_t lanes = warp::kLanes / work.slots;
  const auto has_cells = [&](uint32_t slot) {
    return slot < work.count && work.block(slot).literal_kind == kHuffmanLiterals;
  };
  W::each([&](uint32_t lane) {
    const uint32_t slot = lane / lanes;
    if (lane % lanes == 0 && has_cells(slot)) place_symbols(work.places(slot), work.block(slot));
  });
  W::sync();
  W::each([&](uint32_t lane) {
    const uint32_t slot = lane / lanes;
    if (!has_cells(slot)) return;
    build_cells(work.cells(slot), work.places(slot), work.block(slot), lane % lanes, lanes);
  });
  W::sync();
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
    all_tables[lane] = {work.cells(slot), work.ring(lane), 32u - block.huffman_log};
    if (state.rest) copy_pieces_ahead<W>(all_tables[lane], state, kHuffmanPieces);
  });
  W::wait_for_copies();
  W::sync();

  for (;;) {
    W::each([&](uint32_t lane) { flags[lane] = states[lane].rest > 0; });
    if (!W::any(flags)) break;
    W::each([&](uint32_t lane) {
      HuffmanState& state = states[lane];
      const HuffmanTables& tables = all_tables[lane];
      if (state.rest > 0) copy_pieces_ahead<W>(tables, state, kHuffmanBatch);
      W::wait_for_earlier_copies();
      if (state.rest == 0) return;
      decode_step(tables, state);
      if (state.rest == 0 && state.left != state.bits.first) {
        W::raise(&work.launch.summaries[work.first + lane / kStreams].huffman_error,
                 state.left < state.bits.first ? kStreamTruncated : kStreamTrailing);
      }
    });
  }
  W::wait_for_copies();  // of streams that ended too early
}

}  // namespace zstd_gpu
