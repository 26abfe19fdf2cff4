// Threads that share the work of a kernel with its caller.
#pragma once
#include <atomic>
#include <cstdint>

namespace coterie {

// Tells the processor that this thread waits for another one.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

constexpr int64_t kMaxThreads = 128;

// Calls work(argument, 0) in this thread and work(argument, i) in thread i of the pool for i = 1 .. helpers, and
// returns when none of them is in it any longer. A thread that has not started by the time this one has finished is not
// waited for, and never starts.
void run_together(int64_t helpers, void (*work)(void*, int64_t), void* argument);

// Tasks 0 .. count - 1 for up to `threads` threads. A thread takes `together` adjacent ones at a time.
struct Tasks {
  int64_t count;
  int threads;
  int64_t together = 1;
};

// Portions of the tasks: every thread has a share, and takes from the others' when it has finished its own. The share
// of a thread is the same for the same number of tasks, so that its data are often in the cache of its core.
class Shares {
 public:
  Shares(int64_t portions, int64_t threads) : threads_(threads) {
    for (int64_t i = 0; i < threads; i++) {
      shares_[i].next.store(i * portions / threads, std::memory_order_relaxed);
      shares_[i].end = (i + 1) * portions / threads;
    }
  }
  // Returns a portion for `thread`, or -1 if none is left. `finished` counts the shares without any, from its own on.
  int64_t take(int64_t thread, int64_t& finished) {
    for (; finished < threads_; finished++) {
      Share& share = shares_[(thread + finished) % threads_];
      const int64_t portion = share.next.fetch_add(1, std::memory_order_relaxed);
      if (portion < share.end) return portion;
    }
    return -1;
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int64_t threads_;
  Share shares_[kMaxThreads];
};

// Calls body(task, memory) once for every task. Which thread gets which tasks is not determined. A thread that gets
// some calls make_memory() once before.
template <class Make, class Body>
void parallel_for(Tasks tasks, Make&& make_memory, Body&& body) {
  const int64_t count = tasks.count, together = tasks.together, portions = (count + together - 1) / together;
  if (count <= 0) return;
  if (tasks.threads <= 1 || portions == 1) {
    auto memory = make_memory();
    for (int64_t task = 0; task < count; task++) body(task, memory);
    return;
  }
  const int64_t asked = tasks.threads < portions ? tasks.threads : portions;
  const int64_t threads = asked < kMaxThreads ? asked : kMaxThreads;
  Shares shares(portions, threads);
  auto work = [&](int64_t thread) {
    int64_t finished = 0, portion = shares.take(thread, finished);
    if (portion < 0) return;
    auto memory = make_memory();
    for (; portion >= 0; portion = shares.take(thread, finished))
      for (int64_t task = portion * together; task < count && task < (portion + 1) * together; task++)
        body(task, memory);
  };
  using Work = decltype(work);
  run_together(threads - 1, [](void* given, int64_t thread) { (*static_cast<Work*>(given))(thread); }, &work);
}

// The same for tasks without memory.
template <class Body>
void parallel_for(Tasks tasks, Body&& body) {
  parallel_for(tasks, [] { return 0; }, [&](int64_t task, int) { body(task); });
}

}  // namespace coterie
