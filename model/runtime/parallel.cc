#include "model/runtime/parallel.h"

#include <algorithm>

#include "base/check.h"

namespace aft {
namespace {

// Waits until `value` differs from `old`; returns the new value.
template <typename T>
T WaitForChange(const std::atomic<T>& value, T old) {
  constexpr int kYields = 64;
  for (int i = 0; i < kYields; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ParallelExecutor::ParallelExecutor(int threads)
    : workers_([threads] {
        AFT_CHECK(threads >= 1);
        std::vector<std::unique_ptr<Worker>> workers;
        for (int i = 1; i < threads; ++i) workers.push_back(std::make_unique<Worker>());
        return workers;
      }()) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    worker.thread = std::thread([this, &worker, i] { Work(worker, static_cast<int>(i) + 1); });
  }
}

ParallelExecutor::~ParallelExecutor() {
  for (const auto& worker : workers_) {
    worker->fn = nullptr;
    worker->round.fetch_add(1, std::memory_order_release);
    worker->round.notify_one();
  }
  for (const auto& worker : workers_) worker->thread.join();
}

void ParallelExecutor::For(int64_t n, int64_t grain, Fn fn) const {
  if (n <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, threads());
  running_.store(static_cast<int32_t>(ranges) - 1, std::memory_order_relaxed);
  for (int64_t i = 1; i < ranges; ++i) {
    Worker& worker = *workers_[static_cast<size_t>(i - 1)];
    worker.fn = &fn;
    worker.begin = n * i / ranges;
    worker.end = n * (i + 1) / ranges;
    worker.round.fetch_add(1, std::memory_order_release);
    worker.round.notify_one();
  }
  fn(0, n / ranges, 0);
  int32_t running = running_.load(std::memory_order_acquire);
  while (running > 0) running = WaitForChange(running_, running);
}

void ParallelExecutor::Work(Worker& worker, int index) const {
  uint32_t round = 0;
  for (;;) {
    WaitForChange(worker.round, round);
    ++round;
    if (worker.fn == nullptr) return;
    (*worker.fn)(worker.begin, worker.end, index);
    running_.fetch_sub(1, std::memory_order_release);
    running_.notify_one();
  }
}

}  // namespace aft
