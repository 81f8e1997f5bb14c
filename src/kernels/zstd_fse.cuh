#pragma once
// Walks the three FSE states of blocks' sequences.
//
//   build the tables                      a lane each
//   until all sequences are walked:
//     copy bits ahead into rings of shared memory, those of the step before have arrived
//     kStep times: three lookups; their sum says how many bits the sequence takes; next states
//       packed states -> memory, 4 sequences in a 16-byte store
//
// A state follows from the one before, so one lane walks a block and the time is latency: two dependent accesses to
// shared memory a sequence would be one too many, so the bits are fetched beside the lookups. The extra bits are left to
// zstd_resolve.cuh, which finds their place from the sums. The lanes of a warp are shared out evenly among its slots;
// those of a slot do the same, but for copies and stores.

#include "zstd_block.cuh"

namespace zstd_gpu {

/// A table's entry: bits of the next state | extra bits << 5 | baseline of the next state << 11 | code << 20 (literal
/// lengths) or << 26 (match lengths); an offset's code is the number of its extra bits. The first two of three entries
/// add up without a carry.
constexpr uint32_t kSumBits = 11, kSumMask = (1 << kSumBits) - 1, kNextMask = 31, kExtraMask = 63;
constexpr uint32_t kLiteralShift = 20, kMatchShift = 26;
/// A packed sequence: the sum of three entries, the offset's code from kSumBits on, the other codes where they are.
constexpr uint32_t kCodesMask = ~((1u << kLiteralShift) - 1);

/// Sequences between two looks at the ring, at most 26 + 63 bits each.
constexpr uint32_t kFseStep = 16;
constexpr uint32_t kFseRingWords = 128, kFsePieces = kFseRingWords / 4, kFseBatch = 8;
constexpr uint32_t kFseNeedWords = (kFseStep * 89 + 96 + 31) / 32 + 1;
static_assert(kFseNeedWords + 4 * kFseBatch + 4 <= kFseRingWords, "the ring holds a step and a batch");

/// Shared memory of a block.
struct alignas(16) FseSlot {
  union {
    uint32_t ring[kFseRingWords];
    int16_t counts[kLiteralCodes + kMatchCodes + kOffsetCodes];
  };
  uint32_t literal_states[1 << kMaxLengthLog];
  uint32_t match_states[1 << kMaxLengthLog];
  uint32_t offset_states[1 << kMaxOffsetLog];
};

/// Builds a decoding table from its normalised counts and uses them up. RFC 8878, section 4.1.1.
WARP_FN void build_states(uint32_t* states, int16_t* counts, uint32_t codes, uint32_t log,
                          const uint32_t* lengths, uint32_t code_shift) {
  const uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
  uint32_t high = size;
  for (uint32_t code = 0; code < codes; ++code) {
    if (counts[code] == -1) states[--high] = code;
  }
  uint32_t at = 0;
  for (uint32_t code = 0; code < codes; ++code) {
    for (int i = 0; i < counts[code]; ++i) {
      states[at] = code;
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
    if (counts[code] == -1) counts[code] = 1;
  }
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t code = states[i];
    const uint32_t state = static_cast<uint16_t>(counts[code]++);
    const uint32_t bits = log - warp::log2_floor(state);
    const uint32_t extra = lengths ? lengths[code] >> 24 : code;
    states[i] = bits | extra << 5 | ((state << bits) - size) << kSumBits |
                (lengths ? code << code_shift : 0u);
  }
}

/// Where a sequence's bits are, of those that are left: the 64 before bit `at`, highest first.
struct Window {
  uint32_t high, low;
};

WARP_FN Window ring_window(const uint32_t* ring, int32_t at) {
  // Word k holds bits 32 k to 32 k + 31; `at` bits are left, so the next one is number at - 1.
  const uint32_t last = static_cast<uint32_t>(at - 1) >> 5;
  const uint32_t above = static_cast<uint32_t>(-at) & 31;
  const uint32_t first = ring[last & (kFseRingWords - 1)];
  const uint32_t second = ring[(last - 1) & (kFseRingWords - 1)];
  const uint32_t third = ring[(last - 2) & (kFseRingWords - 1)];
  return {warp::shift_left(second, first, above), warp::shift_left(third, second, above)};
}

/// The blocks that a warp walks at once: `count` from `first` on, in `slots`, a power of two up to 32. Blocks without
/// sequences have nothing to do.
struct FseWork {
  const Launch& launch;
  FseSlot* shared;
  uint32_t first, count, slots;

  WARP_FN uint32_t lanes() const { return warp::kLanes / slots; }
  WARP_FN const Block& block(uint32_t slot) const { return launch.blocks[first + slot]; }
};

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
    for (uint32_t table = lane; table < 3 * work.count; table += warp::kLanes) {
      FseSlot& slot = work.shared[table / 3];
      const Block& block = work.block(table / 3);
      if (block.sequences == 0) continue;
      if (table % 3 == 0) {
        build_states(slot.literal_states, slot.counts, kLiteralCodes, block.literal_log,
                     kLiteralLengths, kLiteralShift);
      } else if (table % 3 == 1) {
        build_states(slot.match_states, slot.counts + kLiteralCodes, kMatchCodes, block.match_log,
                     kMatchLengths, kMatchShift);
      } else {
        build_states(slot.offset_states, slot.counts + kLiteralCodes + kMatchCodes, kOffsetCodes,
                     block.offset_log, nullptr, 0);
      }
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

/// Asks for the next batch of pieces, if the ring has room for it. The lanes of a slot share the work.
template <class W>
WARP_FN void copy_ahead(FseSlot& slot, FseState& state, uint32_t number, uint32_t lanes) {
  const int32_t last_in_use = (state.left - 1) >> 7;
  const int32_t until = state.copied - int32_t{kFseBatch};
  if (state.rest == 0 || state.copied <= state.lowest || until + int32_t{kFsePieces} <= last_in_use)
    return;
  for (int32_t piece = state.copied - 1 - static_cast<int32_t>(number);
       piece >= until && piece >= state.lowest; piece -= static_cast<int32_t>(lanes)) {
    uint32_t* to = slot.ring + (static_cast<uint32_t>(piece) % kFsePieces) * 4;
    if (state.bits.readable(piece * 16, 16)) {
      W::copy_wide(reinterpret_cast<warp::Wide*>(to),
                   reinterpret_cast<const warp::Wide*>(state.bits.base + piece * 16));
    } else {
      for (int32_t i = 0; i < 4; ++i) to[i] = state.bits.word(piece * 4 + i);
    }
  }
  state.copied = until < state.lowest ? state.lowest : until;
}

/// Goes on by one sequence; returns it packed.
WARP_FN uint32_t walk_sequence(const FseSlot& slot, FseState& state) {
  using warp::highest;
  const Window window = ring_window(slot.ring, state.left);
  const uint32_t literal = slot.literal_states[state.literal];
  const uint32_t match = slot.match_states[state.match];
  const uint32_t offset = slot.offset_states[state.offset];
  const uint32_t sum = literal + match + offset;
  const uint32_t extra = sum >> 5 & kExtraMask;
  uint32_t next;
  if (extra < 32) {
    next = warp::shift_left(window.low, window.high, extra);
  } else {
    next = ring_window(slot.ring, state.left - static_cast<int32_t>(extra)).high;
  }
  const uint32_t literal_bits = literal & kNextMask, match_bits = match & kNextMask;
  constexpr uint32_t kBase = (1 << kMaxLengthLog) - 1;
  state.literal = (literal >> kSumBits & kBase) + highest(next, literal_bits);
  next <<= literal_bits;
  state.match = (match >> kSumBits & kBase) + highest(next, match_bits);
  next <<= match_bits;
  state.offset = (offset >> kSumBits & kBase) + highest(next, offset & kNextMask);
  state.left -= static_cast<int32_t>(extra + (sum & kNextMask));
  return (sum & kSumMask) | (offset & kExtraMask << 5) << (kSumBits - 5) |
         ((literal | match) & kCodesMask);
}

/// Bits that the first states take, which come before all others.
WARP_FN int32_t first_bits(const Block& block) {
  return block.literal_log + block.offset_log + block.match_log;
}

/// Where the packed sequences are: the second half of the block's records, which resolve overwrites from the front.
WARP_FN uint32_t* packed_sequences(const Launch& launch, const Block& block) {
  return reinterpret_cast<uint32_t*>(launch.records + block.records_to) + round_up(block.sequences, 4);
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
    state.bits = BitRange::of(work.launch.chunks[block.chunk], block.sequences_at,
                              block.sequence_bytes);
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
    const Window window = ring_window(work.shared[lane / lanes].ring, state.left);
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
