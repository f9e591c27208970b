// Team: threads that do the parts of a job one after the other, each part together, piece by piece.
//
// They are torch's own OpenMP threads: a second pool would fight with it for the cores. A part is done when its pieces
// are, whoever did them. So a thread that lost its core to another process holds the rest up for the piece that it has,
// and not at all where it has none. Who has to wait spins a moment and then gives its core away.
#pragma once

#include <sched.h>

#include <atomic>
#include <vector>

static inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Team {
 public:
  explicit Team(long parts) : parts_(parts) {}

  // Called by every thread for the same parts in the same order: does pieces of one, and returns when all are done.
  template <class Do>
  void share(long part, long pieces, Do piece) {
    Part& mine = parts_[part];
    for (long at = mine.taken.fetch_add(1); at < pieces; at = mine.taken.fetch_add(1)) {
      piece(at);
      mine.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; mine.done.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < SPINS) relax();
      else sched_yield();
    }
  }

 private:
  struct Part {
    alignas(64) std::atomic<long> taken{0};
    alignas(64) std::atomic<long> done{0};
  };
  static constexpr int SPINS = 2000;  // some ten microseconds, longer than a piece takes
  std::vector<Part> parts_;
};
