// Measure how fast threads read uncached memory: each thread reads its own share, with eight sums at a time.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

typedef float wide __attribute__((vector_size(64)));

namespace {

float sum(const wide* from, long count) {
  wide sums[8] = {};
  long i = 0;
  for (; i + 8 <= count; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) sums[j] += from[i + j];
  }
  for (; i < count; i++) sums[0] += from[i];
  float total = 0;
  for (const wide& one : sums)
    for (int lane = 0; lane < 16; lane++) total += one[lane];
  return total;
}

// The threads start to read together, after all of them have been created.
double seconds(const wide* buffer, long count, int threads) {
  std::atomic<int> ready{0};
  std::atomic<float> kept{0};
  std::vector<std::thread> others;
  std::chrono::steady_clock::time_point began;
  auto work = [&](int thread) {
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    if (thread == 0) began = std::chrono::steady_clock::now();
    const long from = count * thread / threads, to = count * (thread + 1) / threads;
    kept.store(sum(buffer + from, to - from));
  };
  try {
    for (int thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
  } catch (...) {  // threads that have started wait for the missing ones: release and join them
    ready.fetch_add(threads);
    for (std::thread& other : others) other.join();
    throw;
  }
  work(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

extern "C" {

// Return a buffer of memory that has been written, or null if there is no memory.
void* probe_open(long bytes) {
  void* buffer = nullptr;
  if (posix_memalign(&buffer, 2 << 20, bytes)) return nullptr;
#ifdef MADV_HUGEPAGE
  madvise(buffer, bytes, MADV_HUGEPAGE);  // as the weights of a model are stored
#endif
  float* values = static_cast<float*>(buffer);
  for (long i = 0; i < bytes / 4; i++) values[i] = 1.0f;  // not zeros, which may all share one page
  return buffer;
}

void probe_close(void* buffer) { std::free(buffer); }

// Return bytes per second of one reading, or 0 if the threads cannot be started.
double probe_read(const void* buffer, long bytes, int threads) {
  try {
    return bytes / seconds(static_cast<const wide*>(buffer), bytes / sizeof(wide), threads);
  } catch (...) {
    return 0;
  }
}
}
