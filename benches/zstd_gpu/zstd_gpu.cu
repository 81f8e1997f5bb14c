// Times our zstd decoder stage by stage, beside nvCOMP's, and compares every byte.
//
//   python make_frames.py /tmp/frames.bin
//   nvcc -O3 -std=c++17 -arch=sm_90 -o /tmp/zstd_gpu zstd_gpu.cu host.cc -ldl && /tmp/zstd_gpu
//   /tmp/frames.bin
//
// More arguments: `check` does not time; `sweep` also times other shapes of the launches; `streams`
// decodes groups on several streams; `profile` decodes 48 frames once, for ncu.

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// A wait that does not end is a failure of this program and not of the machine.
#define ZSTD_GPU_MOST_POLLS (1u << 24)
#include "../../src/kernels/zstd_decode.cu"
#include "../../src/kernels/zstd_tiles.cu"
#include "host.h"

namespace {

using namespace zstd_gpu;
using warp::Wide;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Frame {
  std::vector<uint8_t> encoded, decoded;
  uint32_t bytes;
  bool refused;  // by libzstd
};

struct Set {
  std::string name;
  bool timed;
  std::vector<Frame> frames;
};

/// Whether it is of ERA5-like fields at the usual level, in one of the sizes.
bool is_main(const Set& set) {
  return set.timed && set.name.find(' ', set.name.find(' ') + 1) == std::string::npos;
}

std::vector<Set> read_sets(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Set> sets;
  char name[33] = {};
  uint32_t numbers[3];
  while (file.read(name, 32)) {
    file.read(reinterpret_cast<char*>(numbers), 8);
    Set& set = sets.emplace_back(Set{name, numbers[0] != 0, std::vector<Frame>(numbers[1])});
    for (Frame& frame : set.frames) {
      file.read(reinterpret_cast<char*>(numbers), 12);
      frame.encoded.resize(numbers[0]);
      frame.bytes = numbers[1];
      frame.refused = numbers[2] != 0;
      frame.decoded.resize(frame.refused ? 0 : frame.bytes);
      file.read(reinterpret_cast<char*>(frame.encoded.data()), frame.encoded.size());
      file.read(reinterpret_cast<char*>(frame.decoded.data()), frame.decoded.size());
    }
  }
  if (sets.empty()) std::fprintf(stderr, "%s has no frames\n", path);
  return sets;
}

/// Device memory of an array.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : count_(count) {
    CHECK(cudaMalloc(&data_, std::max<size_t>(bytes(), 16)));
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* get() const { return data_; }
  size_t bytes() const { return count_ * sizeof(T); }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    CHECK(cudaMemcpy(result.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

uint32_t multiprocessors() {
  int count;
  CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return static_cast<uint32_t>(count);
}

/// The shape of the launches: blocks of a warp of entropy, warps of a tile, and how many thread
/// blocks the last stage has for each chunk.
struct Shape {
  uint32_t slots, tile_warps = 16, chunk_tiles = 6;

  /// That of src/gpu/zstd.rs.
  static Shape usual(uint32_t blocks) {
    uint32_t slots = 1;
    while (slots < 8 && blocks > multiprocessors() * slots) slots *= 2;
    return {slots};
  }
};

constexpr int kStages = 4;
const char* const kStageNames[kStages] = {"entropy", "resolve", "chain", "tiles"};

/// `count` copies of a set's frames on the device, with all that a launch needs.
class Batch {
 public:
  Batch(const Set& set, uint32_t count) : set_(set) {
    std::vector<uint64_t> places;
    uint64_t encoded = 0, decoded = 0;
    ScratchSize size = {};
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::vector<Block>> known(set.frames.size());
    std::vector<uint32_t> errors(set.frames.size());
    for (size_t i = 0; i < set.frames.size(); ++i) {
      const Frame& frame = set.frames[i];
      errors[i] = blocks_of(frame.encoded.data(), frame.encoded.size(), frame.bytes, known[i]);
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    header_ms = took.count() * count / set.frames.size();
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t index = i % set.frames.size();
      const Frame& frame = set.frames[index];
      // Frames have any alignment in a chunk; here as many as there are.
      encoded += set.timed ? 0 : i % 16;
      decoded += set.timed ? 0 : (i * 7 + 3) % 16;
      Chunk chunk = {encoded,
                     decoded,
                     i * uint64_t{4},
                     static_cast<uint32_t>(frame.encoded.size()),
                     frame.bytes,
                     static_cast<uint32_t>(blocks.size()),
                     0};
      if (!errors[index]) {
        for (Block block : known[index]) {
          block.chunk = i;
          block.literals_to = size.literals;
          block.records_to = size.records;
          block.groups_to = size.groups;
          const ScratchSize own = scratch_size(block);
          size = {size.literals + own.literals, size.records + own.records,
                  size.groups + own.groups};
          blocks.push_back(block);
        }
        chunk.blocks = known[index].size();
      }
      statuses.push_back(errors[index]);
      chunks.push_back(chunk);
      encoded += round_up(chunk.from_bytes, 256);
      decoded += round_up(chunk.to_bytes, 256);
      bytes += chunk.to_bytes;
      encoded_bytes += chunk.from_bytes;
    }
    from_ = std::make_unique<Array<uint8_t>>(encoded);
    to_ = std::make_unique<Array<uint8_t>>(decoded);
    CHECK(cudaMemset(to_->get(), 0xA5, to_->bytes()));
    status_ = std::make_unique<Array<uint32_t>>(statuses);
    for (uint32_t i = 0; i < count; ++i) {
      Chunk& chunk = chunks[i];
      chunk.from += reinterpret_cast<uint64_t>(from_->get());
      chunk.to += reinterpret_cast<uint64_t>(to_->get());
      chunk.status += reinterpret_cast<uint64_t>(status_->get());
      const bool first = i < set.frames.size();
      const void* source = first
                               ? static_cast<const void*>(set.frames[i].encoded.data())
                               : reinterpret_cast<const void*>(chunks[i % set.frames.size()].from);
      CHECK(cudaMemcpy(reinterpret_cast<void*>(chunk.from), source, chunk.from_bytes,
                       first ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice));
    }
    chunks_ = std::make_unique<Array<Chunk>>(chunks);
    blocks_ = std::make_unique<Array<Block>>(blocks);
    summaries_ = std::make_unique<Array<Summary>>(blocks.size());
    literals_ = std::make_unique<Array<Wide>>(size.literals);
    records_ = std::make_unique<Array<Wide>>(size.records);
    groups_ = std::make_unique<Array<Wide>>(size.groups);
    progress_ = std::make_unique<Array<uint32_t>>(1 + 2 * size_t{count});
    scratch = progress_->bytes() + summaries_->bytes() + literals_->bytes() + records_->bytes() +
              groups_->bytes() + blocks_->bytes();
    launch_ = {chunks_->get(),
               blocks_->get(),
               summaries_->get(),
               literals_->get(),
               records_->get(),
               groups_->get(),
               count,
               static_cast<uint32_t>(blocks.size())};
    for (const Block& block : blocks) sequences += block.sequences;
  }

  /// Begins anew: no summaries, no errors but those of headers.
  void reset(cudaStream_t stream) {
    CHECK(cudaMemsetAsync(summaries_->get(), 0, summaries_->bytes(), stream));
    CHECK(cudaMemsetAsync(progress_->get(), 0, progress_->bytes(), stream));
    CHECK(cudaMemcpyAsync(status_->get(), statuses.data(), status_->bytes(), cudaMemcpyHostToDevice,
                          stream));
  }

  /// Launches a stage. `roles`: 1 sequences, 2 literals, of entropy.
  void run(int stage, Shape shape, cudaStream_t stream, int roles = 3) {
    const uint32_t count = launch_.block_count;
    if (count == 0) return;
    const uint32_t warps = (count + shape.slots - 1) / shape.slots;
    if (stage == 0) {
      const uint32_t bytes = shape.slots * std::max<uint32_t>(sizeof(FseSlot), kHuffmanSlotBytes);
      const uint32_t fse = roles & 1 ? warps : 0;
      zstd_entropy<<<fse + (roles & 2 ? warps : 0), 32, bytes, stream>>>(launch_, fse, shape.slots);
    } else if (stage == 1) {
      zstd_resolve<<<count, 32, 0, stream>>>(launch_);
    } else if (stage == 2) {
      zstd_chain<<<(launch_.chunk_count + 31) / 32, 32, 0, stream>>>(launch_);
    } else {
      const uint32_t shared = tile_shared_bytes(shape.tile_warps), threads = 32 * shape.tile_warps;
      int at_once;
      CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, zstd_execute_tiles,
                                                          static_cast<int>(threads), shared));
      const uint64_t most = std::min(uint64_t{multiprocessors()} * at_once,
                                     uint64_t{shape.chunk_tiles} * launch_.chunk_count);
      const uint64_t tiles = bytes / (shape.tile_warps * kPieceBytes) + 2 * launch_.chunk_count;
      zstd_execute_tiles<<<std::min(most, tiles), threads, shared, stream>>>(launch_,
                                                                             progress_->get());
    }
    CHECK(cudaGetLastError());
  }

  Shape shape() const { return Shape::usual(launch_.block_count); }

  /// Compares with what libzstd makes of the frames; returns how many differ.
  uint32_t differing(bool all) const {
    const std::vector<uint32_t> found = status_->values();
    std::vector<uint8_t> decoded;
    uint32_t wrong = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      // Of many copies, the first and the last ones.
      if (!all && i >= 2 * set_.frames.size() && i + set_.frames.size() < chunks.size()) continue;
      const Frame& frame = set_.frames[i % set_.frames.size()];
      decoded.resize(frame.bytes);
      if (found[i] == 0)
        CHECK(cudaMemcpy(decoded.data(), reinterpret_cast<const void*>(chunks[i].to), frame.bytes,
                         cudaMemcpyDeviceToHost));
      const bool may_refuse = set_.name == "damaged";
      const bool right = frame.refused ? found[i] != 0
                         : found[i]    ? may_refuse
                                       : decoded == frame.decoded;
      if (!right && ++wrong <= 5) {
        const auto at = std::mismatch(decoded.begin(), decoded.end(), frame.decoded.begin()).first -
                        decoded.begin();
        std::printf(
            "  WRONG: %s %zu of %u bytes: status %u in block %u, libzstd %s it, first difference "
            "at %td\n",
            set_.name.c_str(), i, frame.bytes, found[i] & 255, found[i] >> 8,
            frame.refused ? "refuses" : "takes", frame.refused || found[i] ? -1 : at);
      }
    }
    return wrong;
  }

  void spoil() { CHECK(cudaMemset(to_->get(), 0xA5, to_->bytes())); }

  std::vector<Chunk> chunks;
  std::vector<Block> blocks;
  std::vector<uint32_t> statuses;
  uint64_t bytes = 0, encoded_bytes = 0, scratch = 0, sequences = 0;
  double header_ms = 0;

 private:
  const Set& set_;
  std::unique_ptr<Array<uint8_t>> from_, to_;
  std::unique_ptr<Array<uint32_t>> status_, progress_;
  std::unique_ptr<Array<Chunk>> chunks_;
  std::unique_ptr<Array<Block>> blocks_;
  std::unique_ptr<Array<Summary>> summaries_;
  std::unique_ptr<Array<Wide>> literals_, records_, groups_;
  Launch launch_;
};

/// Milliseconds of each of `steps` in a stream, the median of `rounds` after one that is not
/// counted.
std::vector<float> time_steps(const std::function<void(cudaStream_t)>& before,
                              const std::vector<std::function<void(cudaStream_t)>>& steps,
                              int rounds) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<cudaEvent_t> events(steps.size() + 1);
  for (cudaEvent_t& event : events) CHECK(cudaEventCreate(&event));
  std::vector<std::vector<float>> times(steps.size());
  for (int round = 0; round <= rounds; ++round) {
    before(stream);
    CHECK(cudaEventRecord(events[0], stream));
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i](stream);
      CHECK(cudaEventRecord(events[i + 1], stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    for (size_t i = 0; round > 0 && i < steps.size(); ++i) {
      CHECK(cudaEventElapsedTime(&times[i].emplace_back(), events[i], events[i + 1]));
    }
  }
  std::vector<float> medians;
  for (std::vector<float>& of_step : times) {
    std::sort(of_step.begin(), of_step.end());
    medians.push_back(of_step[of_step.size() / 2]);
  }
  for (cudaEvent_t event : events) CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(stream));
  return medians;
}

/// Milliseconds of the stages.
std::vector<float> time_stages(Batch& batch, Shape shape, int rounds) {
  std::vector<std::function<void(cudaStream_t)>> steps;
  for (int stage = 0; stage < kStages; ++stage) {
    steps.push_back([&, stage](cudaStream_t stream) { batch.run(stage, shape, stream); });
  }
  return time_steps([&](cudaStream_t stream) { batch.reset(stream); }, steps, rounds);
}

float time_entropy(Batch& batch, Shape shape, int roles, int rounds) {
  return time_steps([&](cudaStream_t stream) { batch.reset(stream); },
                    {[&](cudaStream_t stream) { batch.run(0, shape, stream, roles); }}, rounds)[0];
}

/// nvCOMP's batched decoder, as nvcomp/zstd.h of 5.x declares it; null if it is not found.
class Nvcomp {
 public:
  Nvcomp() {
    void* library = nullptr;
    for (const char* name : {"libnvcomp.so.5", "libnvcomp.so"}) {
      if (!library) library = dlopen(name, RTLD_NOW);
    }
    if (!library) {
      std::printf("nvCOMP is not there: %s\n", dlerror());
      return;
    }
    size_ = reinterpret_cast<Size>(dlsym(library, "nvcompBatchedZstdDecompressGetTempSizeSync"));
    decode_ = reinterpret_cast<Decode>(dlsym(library, "nvcompBatchedZstdDecompressAsync"));
  }

  /// Milliseconds of a batch and the scratch bytes that it took; 0 if it cannot be measured.
  std::pair<float, size_t> time(const Batch& batch, int rounds) const {
    if (!size_ || !decode_) return {0, 0};
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<size_t> from_bytes, to_bytes;
    size_t largest = 0, total = 0;
    for (const Chunk& chunk : batch.chunks) {
      from.push_back(reinterpret_cast<const void*>(chunk.from));
      to.push_back(reinterpret_cast<void*>(chunk.to));
      from_bytes.push_back(chunk.from_bytes);
      to_bytes.push_back(chunk.to_bytes);
      largest = std::max<size_t>(largest, chunk.to_bytes);
      total += chunk.to_bytes;
    }
    const Array<const void*> d_from(from);
    const Array<void*> d_to(to);
    const Array<size_t> d_from_bytes(from_bytes), d_to_bytes(to_bytes), d_actual(from.size());
    const Array<int> statuses(from.size());
    size_t scratch_bytes = 0;
    if (size_(d_from.get(), d_from_bytes.get(), from.size(), largest, &scratch_bytes, total, {},
              statuses.get(), nullptr))
      return {0, 0};
    CHECK(cudaDeviceSynchronize());
    const Array<uint8_t> scratch(scratch_bytes);
    bool failed = false;
    const auto times =
        time_steps([](cudaStream_t) {}, {[&](cudaStream_t stream) {
                     failed |= decode_(d_from.get(), d_from_bytes.get(), d_to_bytes.get(),
                                       d_actual.get(), from.size(), scratch.get(), scratch_bytes,
                                       d_to.get(), {}, statuses.get(), stream) != 0;
                   }},
                   rounds);
    for (int status : statuses.values()) failed |= status != 0;
    return {failed ? 0 : times[0], scratch_bytes};
  }

 private:
  struct Options {
    int backend;
    char reserved[60];
  };
  using Size = int (*)(const void* const*, const size_t*, size_t, size_t, size_t*, size_t, Options,
                       int*, cudaStream_t);
  using Decode = int (*)(const void* const*, const size_t*, const size_t*, size_t*, size_t, void*,
                         size_t, void* const*, Options, int*, cudaStream_t);
  Size size_ = nullptr;
  Decode decode_ = nullptr;
};

/// Decodes once; prints and returns whether all is right.
bool is_right(Batch& batch, Shape shape, bool all) {
  batch.spoil();
  batch.reset(nullptr);
  for (int stage = 0; stage < kStages; ++stage) batch.run(stage, shape, nullptr);
  CHECK(cudaDeviceSynchronize());
  return batch.differing(all) == 0;
}

double gb_per_s(double bytes, double ms) { return ms > 0 ? bytes / ms / 1e6 : 0; }

/// Checks all frames of the sets that are not timed, in several shapes.
bool check_small(const std::vector<Set>& sets) {
  bool right = true;
  for (const Set& set : sets) {
    if (set.timed) continue;
    Batch batch(set, set.frames.size());
    for (const Shape shape : {Shape{1, 1}, Shape{8, 3}, Shape{2, 8}, Shape{4, 16}, Shape{8, 32}}) {
      const bool same = is_right(batch, shape, true);
      std::printf("%s, %zu frames, %u slots, %u warps a tile: %s\n", set.name.c_str(),
                  set.frames.size(), shape.slots, shape.tile_warps, same ? "right" : "WRONG");
      right &= same;
    }
  }
  return right;
}

/// Times other shapes of the launches.
void sweep(Batch& batch, const char* name) {
  for (const uint32_t slots : {1u, 2u, 4u, 8u}) {
    const Shape shape = {slots};
    std::printf("  sweep %s, %u slots: sequences %.3f, literals %.3f, both %.3f ms\n", name, slots,
                time_entropy(batch, shape, 1, 3), time_entropy(batch, shape, 2, 3),
                time_entropy(batch, shape, 3, 3));
  }
  for (const uint32_t warps : {4u, 8u, 16u, 32u}) {
    std::printf("  sweep %s, %u warps a tile: execute %.3f ms\n", name, warps,
                time_stages(batch, {batch.shape().slots, warps}, 3)[3]);
  }
  std::fflush(stdout);
}

/// GB/s of groups of frames on several streams, one after the other in each, as in the reader.
double time_streams(const Set& set, uint32_t frames, uint32_t streams) {
  struct Worker {
    std::unique_ptr<Batch> batch;
    cudaStream_t stream;
  };
  std::vector<Worker> workers(streams);
  for (Worker& worker : workers) {
    worker.batch = std::make_unique<Batch>(set, frames);
    CHECK(cudaStreamCreateWithFlags(&worker.stream, cudaStreamNonBlocking));
  }
  const Shape shape = workers[0].batch->shape();
  constexpr int kGroups = 12;
  std::chrono::duration<double> took{};
  for (int round = 0; round < 2; ++round) {  // the first one warms up
    CHECK(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int group = 0; group < kGroups; ++group) {
      for (Worker& worker : workers) {
        worker.batch->reset(worker.stream);
        for (int stage = 0; stage < kStages; ++stage)
          worker.batch->run(stage, shape, worker.stream);
      }
    }
    CHECK(cudaDeviceSynchronize());
    took = std::chrono::steady_clock::now() - start;
  }
  for (Worker& worker : workers) CHECK(cudaStreamDestroy(worker.stream));
  return workers[0].batch->bytes * streams * kGroups / took.count() / 1e9;
}

/// Times groups of three sizes on one, two and four streams.
void measure_streams(const std::vector<Set>& sets) {
  for (const Set& set : sets) {
    if (!is_main(set)) continue;
    for (const uint32_t megabytes : {50u, 100u, 200u}) {
      const uint32_t frames = std::max<uint32_t>(1, megabytes * 1'000'000 / set.frames[0].bytes);
      std::printf("%s, groups of %u frames on 1, 2, 4 streams:", set.name.c_str(), frames);
      for (const uint32_t streams : {1u, 2u, 4u}) {
        std::printf(" %.1f", time_streams(set, frames, streams));
      }
      std::printf(" GB/s\n");
      std::fflush(stdout);
    }
  }
}

struct Row {
  std::string name;
  uint32_t frames;
  double ms, entropy_ms, bytes, scratch, nvcomp_ms, nvcomp_scratch;
  bool right;
};

Row measure(const Set& set, uint32_t count, const Nvcomp& nvcomp, bool sweeps) {
  Batch batch(set, count);
  const Shape shape = batch.shape();
  const bool right = is_right(batch, shape, false);
  const std::vector<float> stages = time_stages(batch, shape, 5);
  double ms = 0;
  std::printf(
      "%s x %u (%zu blocks, %.1f k sequences each, %u slots, headers %.2f ms):", set.name.c_str(),
      count, batch.blocks.size(), batch.sequences / 1e3 / std::max<size_t>(1, batch.blocks.size()),
      shape.slots, batch.header_ms);
  for (int stage = 0; stage < kStages; ++stage) {
    std::printf(" %s %.3f", kStageNames[stage], stages[stage]);
    ms += stages[stage];
  }
  std::printf("; alone: sequences %.3f, literals %.3f ms\n", time_entropy(batch, shape, 1, 3),
              time_entropy(batch, shape, 2, 3));
  if (sweeps) sweep(batch, set.name.c_str());
  const auto [nvcomp_ms, nvcomp_scratch] = nvcomp.time(batch, count > 100 ? 2 : 3);
  std::fflush(stdout);
  return {set.name,
          count,
          ms,
          stages[0],
          static_cast<double>(batch.bytes),
          static_cast<double>(batch.scratch),
          nvcomp_ms,
          static_cast<double>(nvcomp_scratch),
          right};
}

void print_table(const std::vector<Row>& rows) {
  std::printf("\n%-22s %6s %8s %8s %8s %8s %9s %9s %9s %9s %6s\n", "frames", "count", "ms", "GB/s",
              "SM-s/GB", "entropy", "e. GB/s", "scratch", "nvCOMP ms", "GB/s", "right");
  for (const Row& row : rows) {
    std::printf("%-22s %6u %8.3f %8.1f %8.2f %8.3f %9.1f %6.0f MB %9.2f %9.1f %6s\n",
                row.name.c_str(), row.frames, row.ms, gb_per_s(row.bytes, row.ms),
                row.ms * 1e-3 * multiprocessors() / (row.bytes / 1e9), row.entropy_ms,
                gb_per_s(row.bytes, row.entropy_ms), row.scratch / 1e6, row.nvcomp_ms,
                gb_per_s(row.bytes, row.nvcomp_ms), row.right ? "yes" : "NO");
  }
  const auto verdict = [](bool go, bool stop) { return go ? "go" : stop ? "stop" : "between"; };
  double latency = 0, throughput = 0, all = 0;
  for (const Row& row : rows) {
    if (row.name != "3.28 MB") continue;
    if (row.frames == 48) latency = row.entropy_ms, all = row.ms;
    if (row.frames == 768) throughput = gb_per_s(row.bytes, row.entropy_ms);
  }
  std::printf(
      "gate, entropy: 48 frames %.2f ms (go <= 2, stop > 4), 768 frames %.0f GB/s (go >= 250, stop "
      "< 120): %s\n",
      latency, throughput,
      verdict(latency <= 2 && throughput >= 250, latency > 4 || throughput < 120));
  std::printf("gate, all: 48 frames %.2f ms (go <= 5): %s\n", all, all <= 5 ? "go" : "not reached");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s FRAMES [check | sweep | streams | profile]\n", arguments[0]);
    return 1;
  }
  const std::string mode = count > 2 ? arguments[2] : "";
  const std::vector<Set> sets = read_sets(arguments[1]);
  const size_t shared = 8 * std::max<size_t>(sizeof(FseSlot), kHuffmanSlotBytes);
  CHECK(cudaFuncSetAttribute(zstd_entropy, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  CHECK(cudaFuncSetAttribute(zstd_execute_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(tile_shared_bytes(32))));
  if (mode == "profile") {
    for (const Set& set : sets) {
      if (set.name != "3.28 MB") continue;
      Batch batch(set, 48);
      std::printf("48 frames: %s\n", is_right(batch, batch.shape(), true) ? "right" : "WRONG");
    }
    return 0;
  }
  if (mode == "streams") {
    measure_streams(sets);
    return 0;
  }
  const bool right = check_small(sets);
  if (mode == "check") return right ? 0 : 1;
  const Nvcomp nvcomp;
  std::vector<Row> rows;
  for (const Set& set : sets) {
    if (!set.timed) continue;
    for (const uint32_t frames : {1u, 6u, 48u, 96u, 384u, 768u}) {
      const uint64_t bytes = uint64_t{frames} * set.frames[0].bytes;
      if (bytes > 4'000'000'000 || (!is_main(set) && frames != 1 && frames != 48 && frames != 384))
        continue;
      rows.push_back(
          measure(set, frames, nvcomp,
                  mode == "sweep" && set.name == "3.28 MB" && (frames == 48 || frames == 768)));
    }
  }
  print_table(rows);
  return 0;
}
