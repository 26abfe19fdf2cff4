// The pool of threads. There is one per process. A caller publishes a job in a word that all workers read. A worker
// enters a job by adding itself to that word while the job is open, so a worker that sleeps, or whose core another
// process uses, delays nobody. When no task is left, the caller closes the job and waits for the workers inside.
//
// After a job, a worker spins for a while, because waking it takes about 50 microseconds in a virtual machine. If
// another process uses its core, spinning would cost the worker the time that it needs for work, so it sleeps at once.
#include "pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace coterie {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSpin = 250 * kMicrosecond;          // a worker spins for this time before it sleeps
constexpr int64_t kKeepCore = 20 * kMicrosecond;      // after this time, a spinning thread yields its core now and then
constexpr int64_t kCheck = 500 * kMicrosecond;        // a worker checks this often whether its core is shared:
constexpr int64_t kInterrupted = 5;                   // it is if the worker did not run for a fifth of the time since then
constexpr int64_t kShortest = 4 * kMillisecond;       // the worker does not spin for this time then, and for twice the
constexpr int64_t kLongest = 128 * kMillisecond;      // time, up to this, if the core is still shared at the next check

int64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t(now.tv_sec) * 1000 * kMillisecond + now.tv_nsec;
}

// The word: 32 bits for the number of the job, 15 for how many workers it can use, 1 that is set while it is open, and
// 16 for the number of workers inside.
constexpr uint64_t kInside = 0xffff, kOpen = 0x10000;
constexpr int kHelpers = 17, kNumber = 32;

class Pool {
 public:
  void run(int64_t helpers, void (*work)(void*, int64_t), void* argument) {
    if (busy_.exchange(true, std::memory_order_acquire)) return work(argument, 0);  // another thread's job
    const Release release{busy_};
    grow(helpers);
    if (helpers > count_) helpers = count_;
    work_ = work, argument_ = argument;
    failed_.store(false, std::memory_order_relaxed);
    number_++;
    word_.store(uint64_t(number_) << kNumber | uint64_t(helpers) << kHelpers | kOpen);
    for (int64_t i = 0; i < helpers; i++) wake(workers_[i]);
    {
      const Close close{*this};  // also if `work` throws, because workers use the caller's variables
      work(argument, 0);
    }
    if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

 private:
  struct alignas(128) Worker {
    std::atomic<bool> sleeps{false};
    std::mutex mutex;
    std::condition_variable wakes;
  };
  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false, std::memory_order_release); }
  };
  struct Close {
    Pool& pool;
    ~Close() {
      if ((pool.word_.fetch_and(~kOpen) & kInside) == 0) return;
      const int64_t start = nanoseconds(CLOCK_MONOTONIC);
      for (int64_t looks = 1; (pool.word_.load(std::memory_order_acquire) & kInside) != 0; looks++) {
        pause_core();
        if (looks % 16 == 0 && nanoseconds(CLOCK_MONOTONIC) - start > kKeepCore) sched_yield();
      }
    }
  };

  void wake(Worker& worker) {
    if (!worker.sleeps.load()) return;
    { const std::lock_guard<std::mutex> lock(worker.mutex); }  // the worker waits, or has not yet read the word
    worker.wakes.notify_one();
  }

  // Starts workers until there are `count`, or as many as the system allows. They block signals, so that Ctrl-C reaches
  // Python's main thread.
  void grow(int64_t count) {
    if (count <= count_) return;
    static const int registered = pthread_atfork(nullptr, nullptr, forget);
    if (registered != 0) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; count_ < count; count_++) std::thread(&Pool::serve, this, count_, number_).detach();
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  static void forget();

  // Enters the present job if it is open, has a place for worker `index`, and is not number `last`.
  bool enter(int64_t index, uint32_t& last) {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (can_enter(word, index, last))
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire)) {
        last = uint32_t(word >> kNumber);
        return true;
      }
    return false;
  }
  static bool can_enter(uint64_t word, int64_t index, uint32_t last) {
    return (word & kOpen) != 0 && uint32_t(word >> kNumber) != last && index < int64_t(word >> kHelpers & 0x7fff);
  }

  // The function of a worker's thread, which does not return.
  void serve(int64_t index, uint32_t last) {
    Core core;
    for (;;) {
      while (!spin(index, last, core)) sleep(index, last, core);
      try {
        work_(argument_, index + 1);
      } catch (...) {
        failed_.store(true, std::memory_order_relaxed);
      }
      word_.fetch_sub(1, std::memory_order_release);
    }
  }

  // Measures whether other processes use a worker's core: then more time passes than the worker's thread runs.
  struct Core {
    int64_t checked = nanoseconds(CLOCK_MONOTONIC), used = nanoseconds(CLOCK_THREAD_CPUTIME_ID), shared_until = 0;
    int64_t pause = kShortest;

    void start(int64_t now) { checked = now, used = nanoseconds(CLOCK_THREAD_CPUTIME_ID); }
    bool is_shared(int64_t now) {
      if (now - checked > kCheck) {
        const int64_t before = used, passed = now - checked;
        start(now);
        if ((passed - (used - before)) * kInterrupted > passed) {
          shared_until = now + pause;
          pause = pause < kLongest ? 2 * pause : kLongest;
        } else if (now >= shared_until) {
          pause = kShortest;
        }
      }
      return now < shared_until;
    }
  };

  // Spins until a job can be entered, and returns true; false if there was none in time or the core is shared.
  bool spin(int64_t index, uint32_t& last, Core& core) {
    const int64_t start = nanoseconds(CLOCK_MONOTONIC);
    for (int64_t now = start; now - start < kSpin; now = nanoseconds(CLOCK_MONOTONIC)) {
      for (int look = 0; look < 16; look++, pause_core())
        if (enter(index, last)) return true;
      if (core.is_shared(now)) return false;
      if (now - start > kKeepCore) sched_yield();
    }
    return false;
  }

  void sleep(int64_t index, uint32_t last, Core& core) {
    Worker& worker = workers_[index];
    std::unique_lock<std::mutex> lock(worker.mutex);
    worker.sleeps.store(true);
    while (!can_enter(word_.load(), index, last)) worker.wakes.wait(lock);
    worker.sleeps.store(false);
    core.start(nanoseconds(CLOCK_MONOTONIC));
  }

  alignas(128) std::atomic<uint64_t> word_{0};
  alignas(128) std::atomic<bool> busy_{false};
  std::atomic<bool> failed_{false};
  void (*work_)(void*, int64_t) = nullptr;
  void* argument_ = nullptr;
  uint32_t number_ = 0;
  int64_t count_ = 0;
  Worker workers_[kMaxThreads - 1];
};

// Never destroyed, because workers use it until the process ends.
alignas(Pool) unsigned char memory[sizeof(Pool)];
Pool* const pool = new (memory) Pool;

// In the child of a fork, which has none of the threads.
void Pool::forget() { new (memory) Pool; }

}  // namespace

void run_together(int64_t helpers, void (*work)(void*, int64_t), void* argument) {
  pool->run(helpers, work, argument);
}

}  // namespace coterie
