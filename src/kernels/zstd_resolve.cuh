#pragma once
// From packed sequences to lengths and offsets, and from blocks to chunks. Every limit is checked
// here.
//
//   resolve, a warp for each block, 32 sequences at once:
//     bit position    end - the sum of bits of those before
//     lengths, offset baselines + extra bits from there
//     offset          through a scan: each sequence maps the three repeat offsets before it to
//     those after it place           the sum of lengths before
//   chain, a thread for each chunk, block after block:
//     base += size; every match must start within what its frame has produced
//
// A block does not know what came before it: how much was produced, and the three repeat offsets.
// So resolve notes what it needs of them (Summary). An offset is a number, or, with its highest bit
// set, `initial repeat offset i, minus k` (k counts how often one was subtracted from it); the
// arithmetic on both is the same.

#include "zstd_fse.cuh"

namespace zstd_gpu {

constexpr uint32_t kUnused = 0xFFFFFFFF;
// Larger than any offset into a chunk; `kInitial + i * kStep - k` stands for initial repeat offset
// i, minus k. k is below the number of sequences, which is far below the margin.
constexpr uint32_t kSymbolic = 0x80000000, kInitial = 0xA0000000, kStep = 0x10000000,
                   kMargin = 0x01000000;

/// Initial repeat offset `index` less `less`.
struct Symbol {
  uint32_t index, less;
};

WARP_FN Symbol symbol_of(uint32_t offset) {
  const uint32_t index = (offset + kMargin - kInitial) / kStep;
  return {index, kInitial + index * kStep - offset};
}

/// The three repeat offsets at one place, by those at an earlier one or in numbers.
struct Repeats {
  uint32_t of[kRepeats];
};

/// `offset` with what it was symbolic in put in. Without branches: lanes differ.
WARP_FN uint32_t put_in(uint32_t offset, const Repeats& repeats) {
  const Symbol symbol = symbol_of(offset);
  uint32_t from = symbol.index == 0 ? repeats.of[0] : repeats.of[1];
  from = symbol.index >= 2 ? repeats.of[2] : from;
  return offset < kSymbolic ? offset : from - symbol.less;
}

/// A sequence read from its bits.
struct Sequence {
  uint32_t literals, match, offset_value;
};

/// A packed sequence and the words that hold its extra bits, on their way from memory.
struct Raw {
  uint32_t packed;
  int32_t at;  // bits up to number at - 1 are the sequence's and those of later ones
  uint32_t words[3];
};

WARP_FN void read_bits(const BitRange& bits, Raw& raw) {
  const int32_t last = (raw.at - 1) >> 5;
  WARP_UNROLL
  for (int32_t i = 0; i < 3; ++i) raw.words[i] = bits.word(last - i);
}

/// Takes a sequence's extra bits apart.
WARP_FN Sequence sequence_of(const Raw& raw) {
  using warp::highest;
  const uint32_t literal = kLiteralLengths[raw.packed >> kLiteralShift & kCodeMask];
  const uint32_t match = kMatchLengths[raw.packed >> kMatchShift & kCodeMask];
  const uint32_t offset_bits = raw.packed >> kOffsetShift;
  const uint32_t above = static_cast<uint32_t>(-raw.at);
  const uint32_t high = warp::shift_left(raw.words[1], raw.words[0], above);
  const uint32_t low = warp::shift_left(raw.words[2], raw.words[1], above);
  uint64_t rest = (static_cast<uint64_t>(high) << 32 | low) << offset_bits;
  const uint32_t match_length =
      (match & kBaseline) + highest(static_cast<uint32_t>(rest >> 32), match >> 24);
  rest <<= match >> 24;
  return {(literal & kBaseline) + highest(static_cast<uint32_t>(rest >> 32), literal >> 24),
          match_length, (1u << offset_bits) + highest(high, offset_bits)};
}

/// What a sequence makes of the repeat offsets before it; the first one after it is its own offset.
WARP_FN Repeats repeats_after(const Sequence& sequence) {
  const uint32_t repeat0 = kInitial, repeat1 = kInitial + kStep, repeat2 = kInitial + 2 * kStep;
  const uint32_t value = sequence.offset_value;
  const bool is_new = value > kRepeats;
  // Larger ones are beyond any chunk, and none may look symbolic.
  const uint32_t offset = value - kRepeats < kMaxChunkBytes ? value - kRepeats : 0;
  const uint32_t number = is_new ? kRepeats : value - 1 + (sequence.literals == 0);
  uint32_t first = number == 0 ? repeat0 : number == 1 ? repeat1 : repeat2;
  first = number == kRepeats ? repeat0 - 1 : first;
  return {
      {is_new ? offset : first, number == 0 ? repeat1 : repeat0, number < 2 ? repeat2 : repeat1}};
}

WARP_FN Record record_of(uint32_t bytes_before, uint32_t literals_before, uint32_t offset) {
  if (offset >= kSymbolic) {
    const Symbol symbol = symbol_of(offset);
    offset = kFromInitial | symbol.index << kInitialShift | symbol.less;
  }
  return bytes_before | static_cast<uint64_t>(literals_before) << kPlaceBits |
         static_cast<uint64_t>(offset) << 2 * kPlaceBits;
}

/// What a lane notes of its sequences.
struct Notes {
  uint32_t reach, slack[kRepeats], above[kRepeats];
};

/// Takes down what a match at `place` of the block needs.
WARP_FN void note(Notes& notes, uint32_t offset, uint32_t place) {
  if (offset < kSymbolic) {
    const uint32_t reach = offset > place ? offset - place : 0;
    if (reach > notes.reach) notes.reach = reach;
    return;
  }
  const Symbol symbol = symbol_of(offset);
  WARP_UNROLL
  for (uint32_t i = 0; i < kRepeats; ++i) {
    if (symbol.index != i) continue;
    if (place + symbol.less < notes.slack[i]) notes.slack[i] = place + symbol.less;
    if (symbol.less > notes.above[i]) notes.above[i] = symbol.less;
  }
}

/// For each lane, what its sequence and those before it in the warp make of the repeat offsets.
template <class W>
WARP_FN typename W::template Var<Repeats> scan_repeats(typename W::template Var<Repeats> scanned) {
  using Words = typename W::template Var<uint32_t>;
  WARP_UNROLL
  for (uint32_t step = 1; step < warp::kLanes; step *= 2) {
    Words of[kRepeats];
    WARP_UNROLL
    for (uint32_t i = 0; i < kRepeats; ++i) {
      W::each([&](uint32_t lane) { of[i][lane] = scanned[lane].of[i]; });
      of[i] = W::from_before(of[i], step);
    }
    W::each([&](uint32_t lane) {
      const Repeats before = {{of[0][lane], of[1][lane], of[2][lane]}};
      WARP_UNROLL
      for (uint32_t& repeat : scanned[lane].of) {
        const uint32_t known = put_in(repeat, before);
        repeat = lane < step ? repeat : known;
      }
    });
  }
  return scanned;
}

/// What is the same on all lanes.
struct Resolved {
  uint32_t error;
  uint32_t bytes, literals;
  Repeats repeats;
};

/// What a block may regenerate.
struct Limits {
  uint32_t bytes, literals;
};

/// Reads sequences ahead of those that are resolved.
template <class W>
struct Reader {
  const BitRange& bits;
  const uint32_t* packed;
  uint32_t sequences;  // of the block
  int32_t left;        // bits
  uint32_t first;      // the next group's first sequence
  typename W::template Var<uint32_t> words;

  /// Asks for the packed sequences of the next group.
  WARP_FN void ask() {
    W::each(
        [&](uint32_t lane) { words[lane] = first + lane < sequences ? packed[first + lane] : 0; });
  }
  /// Finds the bits of the group that was asked for, asks for them and for the next group.
  WARP_FN void read(typename W::template Var<Raw>& raws) {
    typename W::template Var<uint32_t> taken;
    W::each([&](uint32_t lane) {
      // The last sequence of all is followed by no state.
      const uint32_t next = first + lane + 1 < sequences ? words[lane] & kNextMask : 0;
      taken[lane] = next + (words[lane] >> 5 & kExtraMask);
    });
    const auto taken_to = W::up_to(taken);
    W::each([&](uint32_t lane) {
      Raw& raw = raws[lane];
      raw.packed = words[lane];
      raw.at = left - static_cast<int32_t>(taken_to[lane] - taken[lane]);
      if (first + lane < sequences) read_bits(bits, raw);
    });
    left -= static_cast<int32_t>(W::of_lane(taken_to, warp::kLanes - 1));
    first += kGroup;
    ask();
  }
};

/// Resolves `count` sequences from number `first` on, at most 32.
template <class W>
WARP_FN void resolve_group(const typename W::template Var<Raw>& raws, Record* records,
                           uint32_t first, uint32_t count, const Limits& limits, Resolved& resolved,
                           typename W::template Var<Notes>& notes) {
  typename W::template Var<uint32_t> literals, bytes, matches;
  typename W::template Var<Repeats> repeats;
  typename W::template Var<bool> bad_offset;
  W::each([&](uint32_t lane) {
    Sequence sequence = {0, 0, 1};
    if (lane < count) sequence = sequence_of(raws[lane]);
    repeats[lane] = repeats_after(sequence);
    if (lane >= count) repeats[lane] = {{kInitial, kInitial + kStep, kInitial + 2 * kStep}};
    literals[lane] = sequence.literals;
    matches[lane] = sequence.match;
    bytes[lane] = sequence.literals + sequence.match;
  });
  const auto scanned = scan_repeats<W>(repeats);
  const auto literals_to = W::up_to(literals);
  const auto bytes_to = W::up_to(bytes);
  W::sync();  // all have read their packed sequences, which the records may overwrite
  W::each([&](uint32_t lane) {
    const uint32_t offset = put_in(scanned[lane].of[0], resolved.repeats);
    bad_offset[lane] = lane < count && offset == 0;
    if (lane >= count || offset == 0) return;
    note(notes[lane], offset, resolved.bytes + bytes_to[lane] - matches[lane]);
    records[first + lane] =
        record_of(bytes_to[lane] - bytes[lane], literals_to[lane] - literals[lane], offset);
  });
  resolved.literals += W::of_lane(literals_to, warp::kLanes - 1);
  resolved.bytes += W::of_lane(bytes_to, warp::kLanes - 1);
  if (W::any(bad_offset)) resolved.error = kStreamBadOffset;
  if (resolved.bytes > limits.bytes || resolved.literals > limits.literals)
    resolved.error = kStreamTooLong;
  Repeats after;
  typename W::template Var<uint32_t> last;
  WARP_UNROLL
  for (uint32_t i = 0; i < kRepeats; ++i) {
    W::each([&](uint32_t lane) { last[lane] = put_in(scanned[lane].of[i], resolved.repeats); });
    after.of[i] = W::of_lane(last, warp::kLanes - 1);
  }
  resolved.repeats = after;
}

/// Resolves block `number` of the launch.
template <class W>
WARP_FN void resolve_block(const Launch& launch, uint32_t number) {
  const Block& block = launch.blocks[number];
  Summary& summary = launch.summaries[number];
  Resolved resolved = {kStreamOk, 0, 0, {{kInitial, kInitial + kStep, kInitial + 2 * kStep}}};
  typename W::template Var<Notes> notes;
  W::each([&](uint32_t lane) { notes[lane] = {0, {kUnused, kUnused, kUnused}, {0, 0, 0}}; });
  const uint32_t sequences = block.sequences;
  const Limits limits = {block.limit, block.literals};
  if (sequences > 0) {
    const BitRange bits =
        BitRange::of(launch.chunks[block.chunk], block.sequences_at, block.sequence_bytes);
    Record* records = reinterpret_cast<Record*>(launch.records + block.records_to);
    Group* groups = reinterpret_cast<Group*>(launch.groups + block.groups_to);
    Reader<W> reader = {
        bits, packed_sequences(launch, block), sequences, bits.end - first_bits(block), 0, {}};
    typename W::template Var<Raw> raws, next;
    reader.ask();
    reader.read(next);
    int32_t left = bits.first;
    for (uint32_t first = 0; first < sequences && !resolved.error; first += kGroup) {
      raws = next;
      left = reader.left;
      if (first + kGroup < sequences) reader.read(next);
      W::each([&](uint32_t lane) {
        if (lane == 0) groups[first / kGroup] = {resolved.bytes, resolved.literals};
      });
      const uint32_t rest = sequences - first;
      resolve_group<W>(raws, records, first, rest < kGroup ? rest : kGroup, limits, resolved,
                       notes);
    }
    if (!resolved.error && left != bits.first)
      resolved.error = left < bits.first ? kStreamTruncated : kStreamTrailing;
  }
  const uint32_t bytes = resolved.bytes + (limits.literals - resolved.literals);
  if (!resolved.error && bytes > limits.bytes) resolved.error = kStreamTooLong;
  typename W::template Var<uint32_t> words;
  const auto most = [&](auto of) {
    W::each([&](uint32_t lane) { words[lane] = of(notes[lane]); });
    return W::largest(words);
  };
  const uint32_t reach = most([](const Notes& of) { return of.reach; });
  Repeats slack, above;
  WARP_UNROLL
  for (uint32_t i = 0; i < kRepeats; ++i) {
    slack.of[i] = ~most([&](const Notes& of) { return ~of.slack[i]; });
    above.of[i] = most([&](const Notes& of) { return of.above[i]; });
  }
  W::each([&](uint32_t lane) {
    if (lane != 0) return;
    summary.error = resolved.error;
    summary.bytes = bytes;
    summary.sequence_bytes = resolved.bytes;
    summary.sequence_literals = resolved.literals;
    summary.reach = reach;
    WARP_UNROLL
    for (uint32_t i = 0; i < kRepeats; ++i) {
      summary.slack[i] = slack.of[i];
      summary.above[i] = above.of[i];
      summary.repeats[i] = resolved.repeats.of[i];
    }
  });
}

/// Puts a chunk's blocks together; a StreamError | block << 8. Without an error, all may be
/// executed.
WARP_FN uint32_t chain_blocks(const Launch& launch, const Chunk& chunk) {
  Repeats repeats = {};
  uint32_t produced = 0, frame = 0, declared = kNotDeclared;
  for (uint32_t i = 0; i < chunk.blocks; ++i) {
    const Block& block = launch.blocks[chunk.first_block + i];
    Summary& summary = launch.summaries[chunk.first_block + i];
    if (block.first_of_frame) {
      if (declared != kNotDeclared && produced - frame != declared)
        return kStreamTooShort | (i - 1) << 8;
      repeats = {{1, 4, 8}};
      frame = produced;
      declared = block.content_bytes;
    }
    uint32_t error = summary.huffman_error ? summary.huffman_error : summary.error;
    bool bad = summary.reach > produced - frame;
    Repeats next;
    WARP_UNROLL
    for (uint32_t j = 0; j < kRepeats; ++j) {
      bad |= summary.slack[j] != kUnused && (repeats.of[j] > produced - frame + summary.slack[j] ||
                                             repeats.of[j] <= summary.above[j]);
      next.of[j] = put_in(summary.repeats[j], repeats);
    }
    if (!error && bad) error = kStreamBadOffset;
    if (!error && summary.bytes > chunk.to_bytes - produced) error = kStreamTooLong;
    if (error) return error | i << 8;
    summary.base = produced;
    WARP_UNROLL
    for (uint32_t j = 0; j < kRepeats; ++j) summary.initial[j] = repeats.of[j];
    repeats = next;
    produced += summary.bytes;
  }
  const bool complete =
      produced == chunk.to_bytes && (declared == kNotDeclared || produced - frame == declared);
  return complete ? kStreamOk : kStreamTooShort | (chunk.blocks ? chunk.blocks - 1 : 0) << 8;
}

}  // namespace zstd_gpu
