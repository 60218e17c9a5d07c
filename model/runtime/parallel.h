#ifndef AFT_MODEL_RUNTIME_PARALLEL_H_
#define AFT_MODEL_RUNTIME_PARALLEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "model/mixers/workspace.h"

namespace aft {

// Calls fn(begin, end, thread) on up to `threads` threads; see Executor::For. With one range it
// runs on the caller, without touching OpenMP.
//
// The team is OpenMP's, the same one that LibTorch uses: torch's libgomp is the one that is loaded.
// Every calling thread gets a team of its own, so only the engine's thread should call.
void ParallelFor(int threads, int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t, int)> fn);

// The runtime's threads behind the interface that layers and mixers see.
class ParallelExecutor final : public Executor {
 public:
  // REQUIRES: threads >= 1.
  explicit ParallelExecutor(int threads) : threads_(threads) {}

  int threads() const override { return threads_; }
  void For(int64_t n, int64_t grain,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override {
    ParallelFor(threads_, n, grain, fn);
  }

 private:
  const int threads_;
};

}  // namespace aft

#endif  // AFT_MODEL_RUNTIME_PARALLEL_H_
