// Checks zstd frames before nvCOMP decodes them: it takes valid frames only.
//
//   zstd_check_blocks: each block of each frame      -> one Summary each
//   zstd_check_frames: the summaries of each frame   -> its status; an invalid frame is taken out
//   of nvCOMP's arguments
//
// Bits follow bits, so one lane walks a stream, and time is latency: a thread block takes kSlots
// blocks, lane 4 i + s of its first warp Huffman stream s of block i, lane i of its second warp the
// sequences of block i. Tables lie in shared memory, 7.5 KB a block. Nothing needs to be aligned
// but the arrays themselves. The algorithm is in zstd_check.cuh.

#include "zstd_check.cuh"

namespace zstd {

constexpr uint32_t kSlots = 4;

struct Slot {
  Block block;
  Tables tables;
  Summary summary;
  uint32_t literals_error;
  const uint8_t* frame;
};

// The last of `count` frames that starts at or before block `number` of the launch.
__device__ const Frame& frame_of(const Frame* frames, uint32_t count, uint32_t number) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (frames[middle].first_block <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return frames[low];
}

}  // namespace zstd

// Launch with 64 threads and one thread block per kSlots blocks. Every frame has blocks.
extern "C" __global__ void __launch_bounds__(64)
    zstd_check_blocks(const zstd::Frame* frames, uint32_t frame_count, const zstd::Block* blocks,
                      uint32_t block_count, zstd::Summary* summaries) {
  using namespace zstd;
  __shared__ Slot slots[kSlots];
  __shared__ uint32_t literal_lengths[kLiteralCodes], match_lengths[kMatchCodes];
  const uint32_t first = blockIdx.x * kSlots, count = min(kSlots, block_count - first);
  constexpr uint32_t kWords = sizeof(Block) / 4;
  for (uint32_t slot = 0; slot < count; ++slot) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(blocks + first + slot);
    uint32_t* to = reinterpret_cast<uint32_t*>(&slots[slot].block);
    for (uint32_t i = threadIdx.x; i < kWords; i += blockDim.x) to[i] = from[i];
  }
  if (threadIdx.x < kLiteralCodes) literal_lengths[threadIdx.x] = kLiteralLengths[threadIdx.x];
  if (threadIdx.x < kMatchCodes) match_lengths[threadIdx.x] = kMatchLengths[threadIdx.x];
  if (threadIdx.x < count) {
    Slot& slot = slots[threadIdx.x];
    slot.frame =
        reinterpret_cast<const uint8_t*>(frame_of(frames, frame_count, first + threadIdx.x).from);
    slot.literals_error = kStreamOk;
  }
  __syncthreads();

  const uint32_t lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (uint32_t slot = 0; slot < count; ++slot) {
      const Block& block = slots[slot].block;
      if (block.stream_bytes[0]) fill_codes(slots[slot].tables.codes, block.code_ends, lane, 32);
    }
    __syncwarp();
    if (lane < count * 4) {
      Slot& slot = slots[lane / 4];
      const uint32_t error =
          check_stream(slot.tables, slot.block, slot.frame, static_cast<int>(lane % 4));
      if (error) atomicMax(&slot.literals_error, error);
    }
  } else {
    if (lane < count * 3)
      fill_states(slots[lane / 3].tables, slots[lane / 3].block, static_cast<int>(lane % 3));
    __syncwarp();
    if (lane < count) {
      Slot& slot = slots[lane];
      check_sequences(slot.tables, slot.block, slot.frame, literal_lengths, match_lengths,
                      slot.summary);
    }
  }
  __syncthreads();
  if (threadIdx.x < count) {
    Slot& slot = slots[threadIdx.x];
    if (slot.literals_error) slot.summary.error = slot.literals_error;
    summaries[first + threadIdx.x] = slot.summary;
  }
}

// Launch with one thread per frame. `encoded` and `encoded_bytes` are nvCOMP's arguments, entry i
// for frame i; an invalid frame gives way to the one at `valid`, which decodes to nothing.
extern "C" __global__ void __launch_bounds__(32)
    zstd_check_frames(const zstd::Frame* frames, uint32_t count, const zstd::Summary* summaries,
                      uint64_t* encoded, uint64_t* encoded_bytes, uint64_t valid,
                      uint64_t valid_bytes) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const zstd::Frame frame = frames[index];
  const uint32_t error =
      zstd::check_frame(summaries + frame.first_block, frame.blocks, frame.to_bytes);
  if (error == kStreamOk) return;
  *reinterpret_cast<uint32_t*>(frame.status) = error;
  encoded[index] = valid;
  encoded_bytes[index] = valid_bytes;
}
