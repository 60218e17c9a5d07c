#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/mixers/workspace.h"

namespace aft {

// The runtime's threads: a fixed team of the caller and threads - 1 workers.
//
// Not OpenMP, although LibTorch brings it: a step has some forty parallel parts, and OpenMP's
// threads spin at the end of each. On a busy machine the spinner holds the core that the thread it
// waits for needs: measured on 2 cores under load, 2 threads, batch 1: 104 ms a token instead of
// 0.12 ms with one thread. OMP_WAIT_POLICY=passive helps but must be in the environment before the
// process starts. Here a waiting thread offers its core at every turn (sched_yield) for some 20 us,
// then sleeps.
//
// Thread-compatible: one thread at a time may call For, and not from inside fn.
class ParallelExecutor final : public Executor {
 public:
  // Starts threads - 1 workers. REQUIRES: threads >= 1.
  explicit ParallelExecutor(int threads);
  ~ParallelExecutor() override;

  int threads() const override { return static_cast<int>(workers_.size()) + 1; }
  void For(int64_t n, int64_t grain,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override;

 private:
  using Fn = absl::FunctionRef<void(int64_t, int64_t, int)>;

  // Written by the caller before `round` moves on, read by the worker after.
  struct alignas(64) Worker {
    std::atomic<uint32_t> round{0};
    const Fn* fn = nullptr;  // null: stop
    int64_t begin = 0;
    int64_t end = 0;
    std::thread thread;
  };

  void Work(Worker& worker, int index) const;

  const std::vector<std::unique_ptr<Worker>> workers_;
  alignas(64) mutable std::atomic<int32_t> running_{0};
};

}  // namespace aft
