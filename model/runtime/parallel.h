#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/mutex.h"
#include "model/mixers/workspace.h"

namespace aft {

// The runtime's threads: a fixed team of the caller and threads - 1 workers.
//
// A step has about forty parallel parts of a few microseconds each, on machines whose cores other
// programs want too. So a part is cut into pieces. Each thread begins with the pieces that it also
// had in the last step, so that the weights that it reads stay in its core's cache. A thread that
// is done takes pieces of other threads. The caller does not wait for a worker that did not get a
// core in time or has not woken up yet: it does that worker's pieces itself.
//
// A thread that waits spins for about 25 us, longer than the caller works between two parts, and
// then sleeps. A thread that spins for longer may occupy the core that the thread it waits for
// needs: with OpenMP's threads a token took 104 ms instead of 0.12 ms on two busy cores.
//
// When fn throws on any thread, the other pieces still run, and For throws the first exception once
// no thread is in fn any more.
//
// Thread-compatible: one thread at a time may call For, and not from inside fn.
class ParallelExecutor final : public Executor {
 public:
  // Starts threads - 1 workers. With `cpus` worker i runs only on cpus[i mod size]. REQUIRES:
  // threads >= 1; this process may run on these CPUs. Throws std::system_error when the system has
  // no more threads; the workers that had started have ended then.
  explicit ParallelExecutor(int threads, std::vector<int> cpus = {});
  ~ParallelExecutor() override;

  int threads() const override { return static_cast<int>(shares_.size()); }
  // From the next For on, only the first `threads` threads get pieces, the caller among them. The
  // others fall asleep, and parts do not wake them; a thread that is still awake may take a piece.
  // REQUIRES: 1 <= threads <= threads(). For the thread that calls For, between two calls.
  void Use(int threads);
  void For(int64_t n, int64_t grain,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override;

  // Lets the calling thread run only on cpus[0] from now on, if `cpus` is not empty. The thread
  // that is about to make all calls of For must call it.
  void PlaceCaller() const;

  // Does the same for the calling thread until this object is destroyed.
  class PlacedCaller {
   public:
    explicit PlacedCaller(const ParallelExecutor& executor);
    ~PlacedCaller();
    PlacedCaller(const PlacedCaller&) = delete;
    PlacedCaller& operator=(const PlacedCaller&) = delete;

   private:
    const bool placed_;
    cpu_set_t before_ = {};
  };

 private:
  using Fn = absl::FunctionRef<void(int64_t, int64_t, int)>;

  // Ends all workers that have started.
  void Stop();

  // A thread's pieces of the current part: the last of them is `end` - 1, of the `pieces` into
  // which fn's n items are cut. A thread that decrements `left` from above 0 has taken one piece.
  // Until it has run that piece nothing here changes.
  struct alignas(64) Share {
    std::atomic<int32_t> left{0};  // pieces that have not begun
    int32_t end = 0;
    int32_t pieces = 0;
    int64_t n = 0;
    const Fn* fn = nullptr;
  };

  // Runs pieces until there are no more; returns how many. failure_ keeps an exception of a piece.
  int32_t RunPieces(int thread) const;
  // Waits until the thread has a share or, after some spinning, until parts_ differs from `parts`
  // and the thread is in use.
  void WaitForShare(int thread, uint32_t parts) const;
  void Work(int thread) const;

  const std::vector<int> cpus_;
  mutable std::vector<Share> shares_;                   // of each thread, the caller first
  mutable uint32_t done_before_ = 0;                    // value of done_ at the end of the part
  alignas(64) mutable std::atomic<uint32_t> done_{0};   // pieces that workers have done, ever
  alignas(64) mutable std::atomic<uint32_t> parts_{0};  // parts so far; wakes workers that sleep
  mutable std::atomic<bool> failed_{false};             // a piece of the current part has thrown
  mutable std::exception_ptr failure_;                  // set by the thread that has set failed_
  std::atomic<bool> stop_{false};
  // Threads that work; changes under mutex_. An atomic is not waited for: libstdc++ counts the
  // waiting threads of several addresses together, so each part would make a system call.
  std::atomic<int> used_;
  mutable Mutex mutex_;
  mutable CondVar used_changed_;  // or stop_
  std::vector<std::thread> workers_;
};

}  // namespace aft
