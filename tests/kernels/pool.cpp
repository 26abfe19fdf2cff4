// Checks of the pool of threads. They depend on no time: tasks that have to run at once wait for each other.
// Run by `test_pool.py`, and by `.ci/sanitize-kernels` with the address, undefined-behavior and thread sanitizers.
#include "../../src/coterie/kernels/source/pool.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

using coterie::parallel_for;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::_Exit(1);
}

// Returns when `count` threads have called it. A pool without enough threads waits here until the test's time is over.
class Meeting {
 public:
  explicit Meeting(int count) : missing_(count) {}
  void wait() {
    missing_--;
    while (missing_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }

 private:
  std::atomic<int> missing_;
};

void meet(int threads) {
  Meeting meeting(threads);
  parallel_for({threads, threads}, [&](int64_t) { meeting.wait(); });
}

void check_tasks() {
  for (int threads : {0, 1, 2, 3, 8, 300})
    for (int64_t count : {0, 1, 2, 7, 1000})
      for (int64_t together : {1, 3}) {
        std::vector<int> done(size_t(count), 0);  // the thread sanitizer sees a task that two threads execute
        parallel_for({count, threads, together}, [&](int64_t task) { done[size_t(task)]++; });
        for (int times : done) require(times == 1, "every task is executed once");
      }
}

void check_memory() {
  for (int threads : {1, 2, 8}) {
    std::mutex mutex;
    std::set<std::thread::id> makers, users;
    int made = 0;
    const auto make = [&] {
      const std::lock_guard<std::mutex> lock(mutex);
      makers.insert(std::this_thread::get_id());
      return ++made;
    };
    Meeting meeting(threads);
    parallel_for({100, threads}, make, [&](int64_t task, int&) {
      if (task < threads) meeting.wait();
      const std::lock_guard<std::mutex> lock(mutex);
      users.insert(std::this_thread::get_id());
    });
    require(made == threads && users.size() == size_t(threads), "as many threads as asked for have a task");
    require(makers == users, "every thread with a task makes its memory once");
  }
}

// Workers that still look for a job, and others that sleep.
void check_waking() {
  for (int threads : {2, 3, 8, 2, 8})
    for (int pause : {0, 0, 0, 10}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(pause));
      meet(threads);
    }
}

void check_callers() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; caller++)
    callers.emplace_back([caller] {
      for (int64_t job = 0; job < 500; job++) {
        std::vector<int64_t> found(size_t(job % 40 + 1), 0);
        parallel_for({int64_t(found.size()), 2 + caller}, [&](int64_t task) { found[size_t(task)] += task * job; });
        for (size_t task = 0; task < found.size(); task++)
          require(found[task] == int64_t(task) * job, "callers do not disturb each other");
      }
    });
  for (std::thread& caller : callers) caller.join();
}

void check_nesting() {
  std::atomic<int> done{0};
  parallel_for({8, 4}, [&](int64_t) { parallel_for({8, 4}, [&](int64_t) { done++; }); });
  require(done == 64, "a task can have tasks");
}

void check_exceptions() {
  for (bool in_caller : {false, true}) {
    const auto caller = std::this_thread::get_id();
    std::atomic<bool> left{false};
    bool caught = false;
    try {
      Meeting meeting(2);
      parallel_for({2, 2}, [&](int64_t) {
        meeting.wait();
        if ((std::this_thread::get_id() == caller) == in_caller) throw std::bad_alloc();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        left = true;
      });
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    require(caught, "an exception reaches the caller");
    require(left, "the caller waits for the other thread before");
    meet(2);
  }
}

void check_signals(const sigset_t& before) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> blocked{0};
  Meeting meeting(10);
  parallel_for({10, 10}, [&](int64_t) {
    meeting.wait();
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    if (std::this_thread::get_id() != caller) blocked += sigismember(&mine, SIGINT);
  });
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  require(blocked == 9, "workers block signals");
  require(sigismember(&before, SIGINT) == sigismember(&after, SIGINT), "the caller does not");
}

void check_fork() {
  meet(3);
  for (int generation = 0; generation < 2; generation++) {
    const pid_t child = fork();
    if (child == 0) {
      meet(3);
      if (generation == 1) std::_Exit(0);
      continue;  // a child of the child
    }
    int status = -1;
    require(waitpid(child, &status, 0) == child && status == 0, "a forked process has workers of its own");
    meet(3);
    if (generation == 1) std::_Exit(0);  // the child, after its child
    return;
  }
}

}  // namespace

int main(int count, char** arguments) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  check_tasks();
  check_memory();
  check_waking();
  check_callers();
  check_nesting();
  check_exceptions();
  check_signals(before);
  if (count < 2 || std::strcmp(arguments[1], "without-fork") != 0) check_fork();
  std::puts("the pool executes every task once");
}
