// Threads that work through the parts of a job together: each part is divided into pieces, and a part starts when the
// one before it is done.
//
// They are torch's own OpenMP threads: a second pool would compete with it for the cores. A part is done when all its
// pieces are, regardless of which thread did them. So a thread that lost its core to another process delays the others
// by at most one piece. A waiting thread spins for a moment and then yields its core.
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
  Team(long parts, int threads) : threads_(threads), taken_(parts * threads), done_(parts) {}

  // Every thread calls this for the same parts in the same order. It does pieces of the part and returns when all are
  // done. A thread starts with its own contiguous range of pieces, so that it prefetches its own data, and then helps
  // the other threads.
  template <class Do>
  void share(int thread, long part, long pieces, Do piece) {
    std::atomic<long>& done = done_[part].count;
    for (int i = 0; i < threads_; i++) {
      const int whose = (thread + i) % threads_;
      const long begin = pieces * whose / threads_, end = pieces * (whose + 1) / threads_;
      std::atomic<long>& taken = taken_[part * threads_ + whose].count;
      if (i && begin + taken.load(std::memory_order_relaxed) >= end) continue;
      for (long at = begin + taken.fetch_add(1); at < end; at = begin + taken.fetch_add(1)) {
        piece(at);
        done.fetch_add(1, std::memory_order_release);
      }
    }
    for (int spins = 0; done.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < SPINS) relax();
      else sched_yield();
    }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<long> count{0};
  };
  static constexpr int SPINS = 2000;  // about ten microseconds, longer than a piece takes
  const int threads_;
  std::vector<Counter> taken_, done_;
};

// A thread of a team.
struct Seat {
  Team& team;
  int thread;

  template <class Do>
  void share(long part, long pieces, Do piece) const {
    team.share(thread, part, pieces, piece);
  }
};
