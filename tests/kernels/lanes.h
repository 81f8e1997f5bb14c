#pragma once
// Policies that run the kernels' algorithms on the host, as src/kernels/lanes.cuh runs them on a
// GPU.
//
// `OneLane` does all the work alone. A `Crew` runs many lanes by turns, each until its next
// collective: so what one lane leaves in shared memory without a sync is seen by half of the others
// only, forwards or backwards, and lanes that do not meet at the same collective are found.

#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

struct OneLane {
  static constexpr uint32_t LANES = 1;

  uint32_t lane() const { return 0; }
  void sync() const {}
  void copy(uint32_t* to, const uint32_t* from) const { *to = *from; }
  void wait_for_copies() const {}
  uint32_t match(uint32_t) const { return 1; }
  uint64_t sum(uint64_t value) const { return value; }
  uint32_t exclusive_or(uint32_t value) const { return value; }
  template <typename Word>
  Word before(Word value, Word* total) const {
    *total = value;
    return 0;
  }
};

template <uint32_t COUNT>
class Crew {
 public:
  /// One of the lanes; `task` of `run` gets its own.
  class Lane {
   public:
    static constexpr uint32_t LANES = COUNT;

    Lane(Crew* crew, uint32_t lane) : crew_(crew), lane_(lane) {}
    uint32_t lane() const { return lane_; }
    void sync() const { crew_->meet(lane_, 1); }
    void copy(uint32_t* to, const uint32_t* from) const { *to = *from; }
    void wait_for_copies() const {}
    uint32_t match(uint32_t value) const {
      exchange(value, 4);
      uint32_t same = 0;
      for (uint32_t i = 0; i < COUNT; ++i) same |= uint32_t{crew_->values_[i] == value} << i;
      crew_->meet(lane_, 5);
      return same;
    }
    uint64_t sum(uint64_t value) const {
      uint64_t total;
      before(value, &total);
      return total;
    }
    uint32_t exclusive_or(uint32_t value) const {
      exchange(value, 6);
      uint32_t result = 0;
      for (uint64_t of : crew_->values_) result ^= static_cast<uint32_t>(of);
      crew_->meet(lane_, 7);
      return result;
    }
    template <typename Word>
    Word before(Word value, Word* total) const {
      exchange(value, 8);
      Word result = 0;
      *total = 0;
      for (uint32_t i = 0; i < COUNT; ++i) {
        if (i < lane_) result += static_cast<Word>(crew_->values_[i]);
        *total += static_cast<Word>(crew_->values_[i]);
      }
      crew_->meet(lane_, 9);
      return result;
    }

   private:
    void exchange(uint64_t value, int collective) const {
      crew_->values_[lane_] = value;
      crew_->meet(lane_, collective);
    }
    Crew* crew_;
    uint32_t lane_;
  };

  Crew() : values_(COUNT) {
    for (Fiber& fiber : fibers_) fiber.stack.reset(new char[kStack]);
  }

  /// Runs `task` in all lanes, from the first to the last or the other way round at each turn.
  void run(bool backwards, std::function<void(Lane)> task) {
    task_ = std::move(task);
    backwards_ = backwards;
    for (uint32_t turn = 0; turn < COUNT; ++turn) {
      Fiber& fiber = fibers_[turn];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = nullptr;
      fiber.met = 0;
      const auto crew = reinterpret_cast<uintptr_t>(this);
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Crew::enter), 3,
                  static_cast<unsigned int>(crew), static_cast<unsigned int>(crew >> 32), turn);
    }
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fibers_[0].stack.get(), kStack);
    swapcontext(&main_, &fibers_[0].context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }

 private:
  static constexpr size_t kStack = 128 << 10;
  struct Fiber {
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    void* fake = nullptr;
    uint64_t met = 0;  // collectives, and which was the last
    int collective = 0;
  };

  static void enter(unsigned int low, unsigned int high, unsigned int turn) {
    auto* crew = reinterpret_cast<Crew*>(static_cast<uintptr_t>(high) << 32 | low);
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (turn == 0) crew->main_bottom_ = bottom, crew->main_size_ = size;
    crew->task_(Lane(crew, crew->lane_of(turn)));
    crew->pass_on(turn, kEnd);
    abort();  // never resumed
  }

  uint32_t lane_of(uint32_t turn) const { return backwards_ ? COUNT - 1 - turn : turn; }

  void meet(uint32_t lane, int collective) { pass_on(lane_of(lane), collective); }

  /// Lets the next lane run to the same collective; comes back when all have reached it.
  void pass_on(uint32_t turn, int collective) {
    Fiber& me = fibers_[turn];
    ++me.met;
    me.collective = collective;
    if (turn > 0 &&
        (fibers_[turn - 1].met != me.met || fibers_[turn - 1].collective != collective)) {
      fprintf(stderr, "lanes %u and %u do not meet: collective %d (%llu) and %d (%llu)\n",
              lane_of(turn - 1), lane_of(turn), fibers_[turn - 1].collective,
              static_cast<unsigned long long>(fibers_[turn - 1].met), collective,
              static_cast<unsigned long long>(me.met));
      exit(2);
    }
    const bool end = collective == kEnd, to_main = end && turn + 1 == COUNT;
    Fiber& next = fibers_[(turn + 1) % COUNT];
    __sanitizer_start_switch_fiber(end ? nullptr : &me.fake,
                                   to_main ? main_bottom_ : next.stack.get(),
                                   to_main ? main_size_ : kStack);
    swapcontext(&me.context, to_main ? &main_ : &next.context);
    __sanitizer_finish_switch_fiber(me.fake, nullptr, nullptr);
  }

  static constexpr int kEnd = 0;
  Fiber fibers_[COUNT];
  std::vector<uint64_t> values_;
  std::function<void(Lane)> task_;
  bool backwards_ = false;
  ucontext_t main_;
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
};

/// Reads exactly `bytes` bytes of standard input; false at its end.
inline bool read_input(void* to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; }

/// A copy on the heap that begins `offset` bytes after a multiple of 16 and ends with its last
/// byte.
class Exact {
 public:
  Exact(size_t bytes, size_t offset)
      : memory_(new uint8_t[offset + bytes]), data_(memory_.get() + offset) {}
  uint8_t* get() const { return data_; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t* data_;
};
