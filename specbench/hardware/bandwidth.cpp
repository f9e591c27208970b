// Bandwidth: how fast threads read memory that no cache holds, each its own share, with eight sums at a time.

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

// The threads begin together, so that none reads while another is still being made.
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
  } catch (...) {  // those that there are wait for the others, and have to end before they can be let go
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

// A buffer of memory that has been written, or null where there is none.
void* probe_open(long bytes) {
  void* buffer = nullptr;
  if (posix_memalign(&buffer, 2 << 20, bytes)) return nullptr;
  float* values = static_cast<float*>(buffer);
  for (long i = 0; i < bytes / 4; i++) values[i] = 1.0f;  // not zeros: those may all be one page
  return buffer;
}

void probe_close(void* buffer) { std::free(buffer); }

// Bytes per second of one reading; 0 where the threads cannot be had.
double probe_read(const void* buffer, long bytes, int threads) {
  try {
    return bytes / seconds(static_cast<const wide*>(buffer), bytes / sizeof(wide), threads);
  } catch (...) {
    return 0;
  }
}
}
