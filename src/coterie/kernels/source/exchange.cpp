// Exchange of tensors between processes of one machine, the ranks of a run, through memory that all of them map.
//
// Every rank has a counter, and a slot for each of two successive exchanges. In exchange k it fills its slot k mod 2, sets
// its counter to k, waits until all counters are at least k, and reads the slots of all ranks. A slot can be filled again
// in exchange k + 2, since all ranks have finished reading it when they start exchange k + 1, which k + 1 waits for.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include "memory.hpp"
#include "pool.hpp"

namespace coterie {

constexpr int64_t kCounterBytes = 128;  // two cache lines, which processors fetch together
constexpr double kSpinSeconds = 100e-6, kYieldSeconds = 1e-3, kLongestPause = 1e-3;

using Counter = std::atomic<int64_t>;
static_assert(Counter::is_always_lock_free && sizeof(Counter) <= kCounterBytes, "counters are shared by processes");

// Memory that the ranks share: counters, then the slots of even and of odd exchanges.
struct Shared {
  char* start;
  int64_t rank, size, capacity;

  explicit Shared(const int64_t* n) : start(reinterpret_cast<char*>(n[0])), rank(n[1]), size(n[2]), capacity(n[3]) {}
  Counter& counter(int64_t of) const { return *reinterpret_cast<Counter*>(start + of * kCounterBytes); }
  char* slot(int64_t of, int64_t number) const {
    return start + size * kCounterBytes + ((number & 1) * size + of) * capacity;
  }
};

// Short waits keep the core, because a system call takes longer. Longer ones offer it to other processes, and long ones
// sleep for an eighth of the time waited so far, at most a millisecond.
class Wait {
 public:
  double pause() {
    const double waited = std::chrono::duration<double>(Clock::now() - start_).count();
    if (waited < kSpinSeconds) {
      for (int i = 0; i < 8; i++) pause_core();
    } else if (waited < kYieldSeconds) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(waited / 8 < kLongestPause ? waited / 8 : kLongestPause));
    }
    return waited;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// Returns -1 when all ranks have started an exchange, or, after some seconds, the first rank that has not.
int64_t wait_for_all(const Shared& shared, int64_t number, double seconds) {
  Wait wait;
  for (int64_t other = 0; other < shared.size; other++)
    while (shared.counter(other).load(std::memory_order_acquire) < number)
      if (wait.pause() > seconds) return other;
  return -1;
}

// out [count] = the sum over ranks, in their order.
template <class T>
void sum_slots(const Shared& shared, int64_t number, T* out, int64_t count) {
  std::memcpy(out, shared.slot(0, number), size_t(count) * sizeof(T));
  for (int64_t other = 1; other < shared.size; other++) {
    const T* part = reinterpret_cast<const T*>(shared.slot(other, number));
    for (int64_t i = 0; i < count; i++) out[i] += part[i];
  }
}

}  // namespace coterie

COTERIE_API int64_t coterie_exchange_counter_bytes() { return coterie::kCounterBytes; }

COTERIE_API void coterie_exchange_start(const int64_t* n, int64_t number, const void* own, int64_t nbytes) {
  const coterie::Shared shared(n);
  std::memcpy(shared.slot(shared.rank, number), own, size_t(nbytes));
  shared.counter(shared.rank).store(number, std::memory_order_release);
}

COTERIE_API int64_t coterie_exchange_wait(const int64_t* n, int64_t number, double seconds) {
  return coterie::wait_for_all(coterie::Shared(n), number, seconds);
}

COTERIE_API int64_t coterie_exchange_count(const int64_t* n, int64_t rank) {
  return coterie::Shared(n).counter(rank).load(std::memory_order_acquire);
}

COTERIE_API void coterie_exchange_read(const int64_t* n, int64_t number, int64_t rank, void* out, int64_t nbytes) {
  std::memcpy(out, coterie::Shared(n).slot(rank, number), size_t(nbytes));
}

#define COTERIE_EXCHANGE_SUM(T, SUFFIX)                                                                            \
  COTERIE_API void coterie_exchange_sum_##SUFFIX(const int64_t* n, int64_t number, void* out, int64_t count) {      \
    coterie::sum_slots<T>(coterie::Shared(n), number, static_cast<T*>(out), count);                                 \
  }
COTERIE_EXCHANGE_SUM(float, f32)
COTERIE_EXCHANGE_SUM(double, f64)
COTERIE_EXCHANGE_SUM(int64_t, i64)
