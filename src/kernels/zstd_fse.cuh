#pragma once
// Walks the three FSE states of blocks' sequences.
//
//   build the tables                      a lane each
//   until all sequences are walked:
//     copy bits ahead into rings of shared memory, those of the step before have arrived
//     kStep times: three lookups; their sum says how many bits the sequence takes; next states
//       packed states -> memory, 4 sequences in a 16-byte store
//
// A state follows from the one before, so one lane walks a block and the time is latency: two
// dependent accesses to shared memory a sequence would be one too many, so the bits are fetched
// beside the lookups. The extra bits are left to zstd_resolve.cuh, which finds their place from the
// sums. The lanes of a warp are shared out evenly among its slots; those of a slot do the same, but
// for copies and stores.

#include "zstd_block.cuh"

namespace zstd_gpu {

/// A table's entry: bits of the next state | extra bits << 5 | code << 11 (literal lengths) or <<
/// 17 (match lengths) | baseline of the next state << 23; an offset's code is the number of its
/// extra bits. The first two of three entries add up without a carry.
constexpr uint32_t kSumBits = 11, kSumMask = (1 << kSumBits) - 1, kNextMask = 31, kExtraMask = 63;
constexpr uint32_t kLiteralShift = 11, kMatchShift = 17, kBaseShift = 23, kCodeMask = 63;
/// A packed sequence: the sum of three entries, the codes of the lengths where they are, the
/// offset's behind them.
constexpr uint32_t kLengthCodes = kCodeMask << kLiteralShift | kCodeMask << kMatchShift;
constexpr uint32_t kOffsetShift = 23;

/// Sequences between two looks at the ring, at most 26 + 63 bits each.
constexpr uint32_t kFseStep = 16;
constexpr uint32_t kFseRingWords = 128, kFsePieces = kFseRingWords / 4, kFseBatch = 8;
constexpr uint32_t kFseNeedWords = (kFseStep * 89 + 96 + 31) / 32 + 1;
static_assert(kFseNeedWords + 4 * kFseBatch + 4 <= kFseRingWords,
              "the ring holds a step and a batch");

/// Shared memory of a block.
struct alignas(16) FseSlot {
  // The ring, and before it once more its last piece: what comes before word 0 in the stream.
  static constexpr uint32_t kBefore = 4;
  union {
    uint32_t words[kBefore + kFseRingWords];
    int16_t counts[kLiteralCodes + kMatchCodes + kOffsetCodes];
  };
  uint32_t literal_states[1 << kMaxLengthLog];
  uint32_t match_states[1 << kMaxLengthLog];
  uint32_t offset_states[1 << kMaxOffsetLog];
};

/// What a decoding table is built from.
struct FseTable {
  uint32_t* states;
  int16_t* counts;  // used up
  uint32_t codes, log;
  const uint32_t* lengths;  // null for offsets
  uint32_t code_shift;
};

/// Builds a decoding table from its normalized counts. RFC 8878, section 4.1.1.
WARP_FN void build_states(const FseTable& table) {
  const uint32_t size = 1u << table.log, step = (size >> 1) + (size >> 3) + 3;
  uint32_t high = size, at = 0;
  for (uint32_t code = 0; code < table.codes; ++code) {
    if (table.counts[code] == -1) table.states[--high] = code;
  }
  for (uint32_t code = 0; code < table.codes; ++code) {
    const int count = table.counts[code];
    for (int i = 0; i < count; ++i) {
      table.states[at] = code;
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
    if (count == -1) table.counts[code] = 1;
  }
  WARP_NO_UNROLL
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t code = table.states[i];
    const uint32_t state = static_cast<uint16_t>(table.counts[code]++);
    const uint32_t bits = table.log - warp::log2_floor(state);
    const uint32_t extra = table.lengths ? table.lengths[code] >> 24 : code;
    table.states[i] = bits | extra << 5 | (table.lengths ? code << table.code_shift : 0u) |
                      ((state << bits) - size) << kBaseShift;
  }
}

/// The 96 bits that come next, highest first.
struct Window {
  uint32_t high, middle, low;
};

/// Word k of a stream holds its bits 32 k to 32 k + 31; `left` bits are left, so the next one is
/// number left - 1.
WARP_FN Window window_of(const FseSlot& slot, int32_t left) {
  const uint32_t* next =
      slot.words + FseSlot::kBefore + (static_cast<uint32_t>(left - 1) >> 5) % kFseRingWords;
  const uint32_t above = static_cast<uint32_t>(-left);
  const uint32_t words[4] = {next[0], next[-1], next[-2], next[-3]};
  return {warp::shift_left(words[1], words[0], above), warp::shift_left(words[2], words[1], above),
          warp::shift_left(words[3], words[2], above)};
}

/// The blocks that a warp walks at once: `count` from `first` on, in `slots`, a power of two up
/// to 32. Blocks without sequences have nothing to do.
struct FseWork {
  const Launch& launch;
  FseSlot* shared;
  uint32_t first, count, slots;

  WARP_FN uint32_t lanes() const { return warp::kLanes / slots; }
  WARP_FN const Block& block(uint32_t slot) const { return launch.blocks[first + slot]; }
};

WARP_FN FseTable table_of(FseSlot& slot, const Block& block, uint32_t number) {
  int16_t* counts = slot.counts;
  if (number == 0) {
    return {slot.literal_states, counts,          kLiteralCodes,
            block.literal_log,   kLiteralLengths, kLiteralShift};
  }
  counts += kLiteralCodes;
  if (number == 1) {
    return {slot.match_states, counts, kMatchCodes, block.match_log, kMatchLengths, kMatchShift};
  }
  return {slot.offset_states, counts + kMatchCodes, kOffsetCodes, block.offset_log, nullptr, 0};
}

template <class W>
WARP_FN void build_tables(const FseWork& work) {
  W::each([&](uint32_t lane) {
    const uint32_t slot = lane / work.lanes();
    if (slot >= work.count) return;
    const Block& block = work.block(slot);
    int16_t* to = work.shared[slot].counts;
    if (block.sequences == 0) return;
    for (uint32_t i = lane % work.lanes(); i < kMatchCodes; i += work.lanes()) {
      if (i < kLiteralCodes) to[i] = block.literal_counts[i];
      to[kLiteralCodes + i] = block.match_counts[i];
      if (i < kOffsetCodes) to[kLiteralCodes + kMatchCodes + i] = block.offset_counts[i];
    }
  });
  W::sync();
  W::each([&](uint32_t lane) {
    for (uint32_t i = lane; i < 3 * work.count; i += warp::kLanes) {
      const Block& block = work.block(i / 3);
      if (block.sequences > 0) build_states(table_of(work.shared[i / 3], block, i % 3));
    }
  });
  W::sync();
}

/// Where a lane is in its block.
struct FseState {
  BitRange bits;
  int32_t left;            // bits up to number left - 1 are not read yet
  int32_t lowest, copied;  // first piece of 16 bytes of the stream; the last one that was asked for
  uint32_t literal, match, offset;
  uint32_t rest;  // sequences
  warp::Wide* to;

  /// Whether the next step may need bits that are not in the ring yet.
  WARP_FN bool is_short() const {
    return rest > 0 && copied > lowest && left - copied * 128 < int32_t{kFseNeedWords * 32};
  }
};

/// Asks for the next batch of pieces, if the ring has room for it. The lanes of a slot share the
/// work.
template <class W>
WARP_FN void copy_ahead(FseSlot& slot, FseState& state, uint32_t number, uint32_t lanes) {
  const int32_t last_in_use = (state.left - 1) >> 7;
  const int32_t until = state.copied - int32_t{kFseBatch};
  if (state.rest == 0 || state.copied <= state.lowest || until + int32_t{kFsePieces} <= last_in_use)
    return;
  for (int32_t piece = state.copied - 1 - static_cast<int32_t>(number);
       piece >= until && piece >= state.lowest; piece -= static_cast<int32_t>(lanes)) {
    const uint32_t place = static_cast<uint32_t>(piece) % kFsePieces;
    copy_piece<W>(slot.words + FseSlot::kBefore + place * 4, state.bits, piece);
    if (place == kFsePieces - 1) copy_piece<W>(slot.words, state.bits, piece);
  }
  state.copied = until < state.lowest ? state.lowest : until;
}

/// Goes on by one sequence; returns it packed. Shifts take their count modulo 32, so that entries
/// need no masks.
WARP_FN uint32_t walk_sequence(const FseSlot& slot, FseState& state) {
  using warp::highest;
  using warp::shift_left;
  const uint32_t literal = slot.literal_states[state.literal];
  const uint32_t match = slot.match_states[state.match];
  const uint32_t offset = slot.offset_states[state.offset];
  const Window window = window_of(slot, state.left);
  const uint32_t sum = literal + match + offset;
  const bool many = sum & 32 << 5;  // extra bits
  uint32_t next =
      shift_left(many ? window.low : window.middle, many ? window.middle : window.high, sum >> 5);
  state.literal = (literal >> kBaseShift) + highest(next, literal);
  next = shift_left(0, next, literal);
  state.match = (match >> kBaseShift) + highest(next, match);
  next = shift_left(0, next, match);
  state.offset = (offset >> kBaseShift) + highest(next, offset);
  state.left -= static_cast<int32_t>((sum >> 5 & kExtraMask) + (sum & kNextMask));
  return (sum & kSumMask) | ((literal | match) & kLengthCodes) |
         (offset << (kOffsetShift - 5) & 31u << kOffsetShift);
}

/// Bits that the first states take, which come before all others.
WARP_FN int32_t first_bits(const Block& block) {
  return block.literal_log + block.offset_log + block.match_log;
}

/// Where the packed sequences are: the second half of the block's records, which resolve overwrites
/// from the front.
WARP_FN uint32_t* packed_sequences(const Launch& launch, const Block& block) {
  return reinterpret_cast<uint32_t*>(launch.records + block.records_to) +
         round_up(block.sequences, 4);
}

template <class W>
WARP_FN void walk_sequences(const FseWork& work) {
  build_tables<W>(work);
  typename W::template Var<FseState> states;
  typename W::template Var<bool> flags;
  const uint32_t lanes = work.lanes();
  W::each([&](uint32_t lane) {
    FseState& state = states[lane];
    const uint32_t number = lane / lanes;
    state.rest = number < work.count ? work.block(number).sequences : 0;
    if (state.rest == 0) return;
    const Block& block = work.block(number);
    state.bits =
        BitRange::of(work.launch.chunks[block.chunk], block.sequences_at, block.sequence_bytes);
    state.left = state.bits.end;
    state.lowest = state.bits.first >> 7;
    state.copied = (state.bits.end >> 7) + 1;
    state.to = reinterpret_cast<warp::Wide*>(packed_sequences(work.launch, block));
    for (uint32_t i = 0; i < kFsePieces / kFseBatch; ++i) {
      copy_ahead<W>(work.shared[number], state, lane % lanes, lanes);
    }
  });
  W::wait_for_copies();
  W::sync();
  W::each([&](uint32_t lane) {
    FseState& state = states[lane];
    if (state.rest == 0) return;
    const Block& block = work.block(lane / lanes);
    const Window window = window_of(work.shared[lane / lanes], state.left);
    const uint32_t literal = block.literal_log, offset = block.offset_log;
    state.literal = warp::highest(window.high, literal);
    state.offset = warp::highest(window.high << literal, offset);
    state.match = warp::highest(window.high << (literal + offset), block.match_log);
    state.left -= first_bits(block);
  });

  for (;;) {
    W::each([&](uint32_t lane) { flags[lane] = states[lane].rest > 0; });
    if (!W::any(flags)) return;
    // Rarely: a step took more bits than a batch has.
    for (;;) {
      W::each([&](uint32_t lane) { flags[lane] = states[lane].is_short(); });
      if (!W::any(flags)) break;
      W::each([&](uint32_t lane) {
        if (states[lane].rest == 0) return;
        copy_ahead<W>(work.shared[lane / lanes], states[lane], lane % lanes, lanes);
      });
      W::wait_for_copies();
      W::sync();
    }
    W::each([&](uint32_t lane) {
      FseState& state = states[lane];
      if (state.rest == 0) return;
      FseSlot& slot = work.shared[lane / lanes];
      copy_ahead<W>(slot, state, lane % lanes, lanes);
      WARP_NO_UNROLL
      for (uint32_t i = 0; i < kFseStep / 4; ++i) {
        warp::Wide packed;
        WARP_UNROLL
        for (uint32_t& word : packed.words) word = walk_sequence(slot, state);
        if (lane % lanes == 0) *state.to = packed;
        ++state.to;
        state.rest -= state.rest < 4 ? state.rest : 4;
        if (state.rest == 0) break;
      }
    });
    W::wait_for_copies();
    W::sync();
  }
}

}  // namespace zstd_gpu
