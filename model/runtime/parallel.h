#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/mixers/workspace.h"

namespace aft {

// The runtime's threads: a fixed team of the caller and threads - 1 workers.
//
// A step has some forty parallel parts of a few microseconds, on machines whose cores others want
// too. So a part is cut into chunks, and each thread begins with those that were its own in the
// last step as well: the weights that it reads stay in its core's cache. Who is done takes chunks
// of others. A worker that did not get a core in time, or has not woken up yet, is not waited for:
// the caller does its chunks.
//
// Who waits spins for some 25 us, longer than the caller works between two parts, and then sleeps.
// Threads that spin on hold the very core that the thread they wait for needs: with OpenMP's a
// token took 104 ms instead of 0.12 ms on two busy cores.
//
// When fn throws, on whichever thread, the other chunks run all the same, and For throws the first
// exception once no thread is in fn any more.
//
// Thread-compatible: one thread at a time may call For, and not from inside fn.
class ParallelExecutor final : public Executor {
 public:
  // Starts threads - 1 workers. With `cpus` worker i runs on cpus[i mod size] alone. REQUIRES:
  // threads >= 1; this process may run on these CPUs. Throws std::system_error when the system has
  // no more threads; those that had started have ended then.
  explicit ParallelExecutor(int threads, std::vector<int> cpus = {});
  ~ParallelExecutor() override;

  int threads() const override { return static_cast<int>(shares_.size()); }
  void For(int64_t n, int64_t grain,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override;

  // The calling thread runs on cpus[0] alone from now on, if there are any: to be called by the
  // thread that is about to make all calls of For.
  void PlaceCaller() const;

 private:
  using Fn = absl::FunctionRef<void(int64_t, int64_t, int)>;

  // Ends the workers that there are.
  void Stop();

  // A thread's chunks of the current part, first to end - 1, of `chunks` into which fn's n items
  // are cut. Who takes `left` down from above 0 has one of them, and until that is done nothing
  // here changes.
  struct alignas(64) Share {
    std::atomic<int32_t> left{0};  // that nobody has begun
    int32_t end = 0;
    int32_t chunks = 0;
    int64_t n = 0;
    const Fn* fn = nullptr;
  };

  // Runs chunks while there are any; returns how many. What one throws is kept in failure_.
  int32_t RunChunks(int thread) const;
  // Until the thread has a share, or long enough and there have been more than `parts` parts.
  void WaitForShare(int thread, uint32_t parts) const;
  void Work(int thread) const;

  const std::vector<int> cpus_;
  mutable std::vector<Share> shares_;                   // of each thread, the caller first
  mutable uint32_t done_before_ = 0;                    // done_ when the part began
  alignas(64) mutable std::atomic<uint32_t> done_{0};   // chunks that workers have done, ever
  alignas(64) mutable std::atomic<uint32_t> parts_{0};  // ever; wakes who sleeps
  mutable std::atomic<bool> failed_{false};             // a chunk of the current part has thrown
  mutable std::exception_ptr failure_;                  // by the thread that has set failed_
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace aft
