// Execute in tiles: zstd_tiles.cuh. It takes the place of the last kernel of zstd_decode.cu.

#include "zstd_tiles.cuh"

namespace zstd_gpu {

/// What thread blocks know of each other: zeros before, `tile_progress_words` of them.
struct TileProgress {
  uint32_t* words;
  uint32_t chunks;

  /// How many thread blocks asked for a chunk.
  __device__ uint32_t* asked() const { return words; }
  /// How many tiles of a chunk were taken.
  __device__ uint32_t* taken(uint32_t chunk) const { return words + 1 + chunk; }
  /// How many tiles of a chunk are final.
  __device__ uint32_t* final(uint32_t chunk) const { return words + 1 + chunks + chunk; }
};

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
#if __CUDA_ARCH__ >= 700
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
#else
  value = *reinterpret_cast<const volatile uint32_t*>(from);
  __threadfence();
#endif
  return value;
}

__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
  __threadfence();
#if __CUDA_ARCH__ >= 700
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  *reinterpret_cast<volatile uint32_t*>(to) = value;
#endif
}

/// Waits until at least `count` tiles are final; returns how many are.
__device__ __forceinline__ uint32_t wait_for_tiles(const uint32_t* final, uint32_t count) {
#ifdef ZSTD_GPU_MOST_POLLS
  uint32_t polls = 0;
#endif
  for (;;) {
    const uint32_t known = load_acquire(final);
    if (known >= count) return known;
#ifdef ZSTD_GPU_MOST_POLLS
    if (++polls > ZSTD_GPU_MOST_POLLS) __trap();
#endif
    __nanosleep(count - known > 2 ? 500 : 20);
  }
}

/// The number of tiles of a chunk: none if it has an error.
__device__ __forceinline__ uint32_t tiles_of(const Chunk& chunk, uint32_t warps) {
  if (*reinterpret_cast<const uint32_t*>(chunk.status)) return 0;
  return Tiling::of(chunk, warps).count;
}

/// A chunk that has tiles left, from number `first` on and around; chunk_count if there is none.
/// For one warp.
__device__ __forceinline__ uint32_t find_chunk(const Launch& launch, const TileProgress& progress,
                                               uint32_t first, uint32_t warps) {
  for (uint32_t i = 0; i < launch.chunk_count; i += warp::kLanes) {
    const uint32_t at = i + threadIdx.x % warp::kLanes;
    uint32_t chunk = first + at;
    if (chunk >= launch.chunk_count) chunk -= launch.chunk_count;
    const bool has = at < launch.chunk_count &&
                     *reinterpret_cast<const volatile uint32_t*>(progress.taken(chunk)) <
                         tiles_of(launch.chunks[chunk], warps);
    const uint32_t lanes = __ballot_sync(~0u, has);
    if (lanes) return __shfl_sync(~0u, chunk, __ffs(static_cast<int>(lanes)) - 1);
  }
  return launch.chunk_count;
}

/// What a thread block does next.
struct Turn {
  uint32_t chunk, tile;
};

/// The next tile of the chunk that was worked on, or of another one; chunk_count: there is none.
/// For one warp.
__device__ __forceinline__ Turn take_tile(const Launch& launch, const TileProgress& progress,
                                          uint32_t chunk, uint32_t warps) {
  const bool leads = threadIdx.x % warp::kLanes == 0;
  for (;;) {
    if (chunk < launch.chunk_count) {
      const uint32_t tile = __shfl_sync(~0u, leads ? atomicAdd(progress.taken(chunk), 1u) : 0u, 0);
      if (tile < tiles_of(launch.chunks[chunk], warps)) return {chunk, tile};
    }
    const uint32_t asked = __shfl_sync(~0u, leads ? atomicAdd(progress.asked(), 1u) : 0u, 0);
    chunk = find_chunk(launch, progress, asked % launch.chunk_count, warps);
    if (chunk == launch.chunk_count) return {chunk, 0};
  }
}

/// Waits for what the tile needs, writes it and says so.
__device__ __forceinline__ void write_tile(const Chunk& chunk, const Tiling& tiling,
                                           const Tile& tile, uint32_t number, uint32_t* final,
                                           Piece<warp::Device>& piece, uint32_t& shared_known) {
  uint32_t known = 0;
  for (;;) {
    if (threadIdx.x == 0) {
      // At first what there is, later at least one more.
      shared_known = wait_for_tiles(final, known);
    }
    __syncthreads();
    known = shared_known;
    const bool left = piece.write(chunk, tile, known < number ? tiling.begin(known) : tile.begin);
    if (!__syncthreads_or(left)) break;
    ++known;
  }
  if (threadIdx.x == 0) {
    if (known < number) wait_for_tiles(final, number);
    store_release(final, number + 1);
  }
}

}  // namespace zstd_gpu

/// Executes all chunks. Any number of thread blocks of any number of warps up to 32; each takes
/// tiles until none is left. Dynamic shared memory: tile_shared_bytes. `progress`: 1 + 2 *
/// chunk_count words, zeros.
extern "C" __global__ void __launch_bounds__(1024, 1)
    zstd_execute_tiles(zstd_gpu::Launch launch, uint32_t* words) {
  using namespace zstd_gpu;
  extern __shared__ warp::Wide zstd_shared[];
  __shared__ Turn shared_turn;
  __shared__ uint32_t shared_known;
  const uint32_t warp = threadIdx.x / warp::kLanes, warps = blockDim.x / warp::kLanes;
  uint32_t* entries = reinterpret_cast<uint32_t*>(zstd_shared);
  TileShared& shared = reinterpret_cast<TileShared*>(entries + warps * kPieceBytes)[warp];
  const TileProgress progress = {words, launch.chunk_count};
  Turn turn = {launch.chunk_count, 0};
  for (;;) {
    if (warp == 0) {
      turn = take_tile(launch, progress, turn.chunk, warps);
      if (threadIdx.x == 0) shared_turn = turn;
    }
    __syncthreads();
    turn = shared_turn;
    if (turn.chunk == launch.chunk_count) return;
    const Chunk chunk = launch.chunks[turn.chunk];
    const Tiling tiling = Tiling::of(chunk, warps);
    const Tile tile = Tile::of(chunk, tiling, turn.tile, entries);
    expand_piece<warp::Device>(launch, chunk, tile, shared, warp);
    __syncthreads();
    Piece<warp::Device> piece;
    piece.read(tile, warp);
    while (__syncthreads_or(piece.follow(tile))) {
      piece.leave(tile);
      __syncthreads();
    }
    write_tile(chunk, tiling, tile, turn.tile, progress.final(turn.chunk), piece, shared_known);
  }
}
