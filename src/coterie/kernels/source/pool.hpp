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

// Calls work(argument) in this thread and in up to `helpers` others, and returns when none of them is in it any longer.
// A thread that has not started by the time this one has finished is not waited for.
void run_together(int64_t helpers, void (*work)(void*), void* argument);

// Tasks 0 .. count - 1 for up to `threads` threads. A thread takes `together` adjacent ones at a time.
struct Tasks {
  int64_t count;
  int threads;
  int64_t together = 1;
};

// Calls body(task, memory) once for every task. Which thread gets which tasks is not determined. A thread that gets some
// calls make_memory() once before.
template <class Make, class Body>
void parallel_for(Tasks tasks, Make&& make_memory, Body&& body) {
  const int64_t count = tasks.count, together = tasks.together, portions = (count + together - 1) / together;
  if (count <= 0) return;
  if (tasks.threads <= 1 || portions == 1) {
    auto memory = make_memory();
    for (int64_t task = 0; task < count; task++) body(task, memory);
    return;
  }
  alignas(128) std::atomic<int64_t> next{0};
  auto work = [&] {
    int64_t first = next.fetch_add(together, std::memory_order_relaxed);
    if (first >= count) return;
    auto memory = make_memory();
    for (; first < count; first = next.fetch_add(together, std::memory_order_relaxed))
      for (int64_t task = first; task < count && task < first + together; task++) body(task, memory);
  };
  using Work = decltype(work);
  run_together((tasks.threads < portions ? tasks.threads : portions) - 1,
               [](void* given) { (*static_cast<Work*>(given))(); }, &work);
}

// The same for tasks without memory.
template <class Body>
void parallel_for(Tasks tasks, Body&& body) {
  parallel_for(tasks, [] { return 0; }, [&](int64_t task, int) { body(task); });
}

}  // namespace coterie
