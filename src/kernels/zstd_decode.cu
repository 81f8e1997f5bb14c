// Decodes zstd frames: entropy, resolve, chain, and execute in zstd_tiles.cu. What each does:
// zstd_block.cuh and the files that it names.
//
// Launch them one after the other in one stream; all take the same arguments. The summaries are
// zeros before.

#include "zstd_fse.cuh"
#include "zstd_huffman.cuh"
#include "zstd_resolve.cuh"

namespace zstd_gpu {

// src/gpu/zstd.rs asks for as much shared memory.
static_assert(sizeof(FseSlot) == 5648 && kHuffmanSlotBytes <= sizeof(FseSlot), "a slot of entropy");
static_assert(sizeof(Launch) == 56, "mirrored in Rust");

}  // namespace zstd_gpu

/// One warp a thread block: those below `fse_blocks` walk sequences, the others decode literals,
/// `slots` blocks each. Dynamic shared memory: slots times the larger of FseSlot and
/// kHuffmanSlotBytes.
extern "C" __global__ void __launch_bounds__(32)
    zstd_entropy(zstd_gpu::Launch launch, uint32_t fse_blocks, uint32_t slots) {
  using namespace zstd_gpu;
  extern __shared__ warp::Wide zstd_shared[];
  const bool literals = blockIdx.x >= fse_blocks;
  const uint32_t first = (literals ? blockIdx.x - fse_blocks : blockIdx.x) * slots;
  const uint32_t count = min(slots, launch.block_count - first);
  if (literals) {
    decode_literals<warp::Device>(
        HuffmanWork{launch, reinterpret_cast<uint8_t*>(zstd_shared), first, count, slots});
  } else {
    walk_sequences<warp::Device>(
        FseWork{launch, reinterpret_cast<FseSlot*>(zstd_shared), first, count, slots});
  }
}

/// One warp a thread block and block of the launch.
extern "C" __global__ void __launch_bounds__(32) zstd_resolve(zstd_gpu::Launch launch) {
  zstd_gpu::resolve_block<warp::Device>(launch, blockIdx.x);
}

/// One thread a chunk.
extern "C" __global__ void __launch_bounds__(32) zstd_chain(zstd_gpu::Launch launch) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= launch.chunk_count) return;
  const zstd_gpu::Chunk& chunk = launch.chunks[index];
  if (*reinterpret_cast<const uint32_t*>(chunk.status)) return;  // damaged, as is known
  const uint32_t error = zstd_gpu::chain_blocks(launch, chunk);
  if (error) *reinterpret_cast<uint32_t*>(chunk.status) = error;
}
