#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aft {

// Decides how many threads compute a step, by its number of tokens. With few tokens the parts of a
// small model's step take a few microseconds, and giving them to a second thread may take longer
// than it saves. How long that takes differs between machines and hours, so it is measured at load.
// Results do not depend on the number of threads. Immutable.
class StepThreads {
 public:
  // Runs one step of this number of tokens with this number of threads. Returns how long it took.
  using Step =
      absl::FunctionRef<absl::StatusOr<std::chrono::nanoseconds>(int64_t tokens, int threads)>;

  // Every step uses `threads`. REQUIRES: threads >= 1.
  explicit StepThreads(int threads) : threads_{threads} {}

  // Measures steps of 1, 2, 4, ... up to `most_tokens` tokens, with 1, 2, 4, ... and `threads`
  // threads. Chooses the smallest number with which a step takes at most a ninth longer than with
  // the best one, and never a smaller one for more tokens, because these have more work. So it ends
  // as soon as all threads are worth it: for large models after steps of one token. Steps that are
  // twice as large as the largest measured one, or larger, use all threads. Returns the first error
  // of a step. REQUIRES: threads >= 1, most_tokens >= 1.
  static absl::StatusOr<StepThreads> Measure(int threads, int64_t most_tokens, Step step);

  // The threads of a step of `tokens` >= 1. Between two measured sizes the smaller one decides.
  int For(int64_t tokens) const;

  // For logs: "2 threads", or "1 thread below 8 tokens, then 2 threads".
  std::string ToString() const;

 private:
  std::vector<int> threads_;  // [i]: of steps of 2^i tokens and more; at least one
};

// Runs a step for Measure and returns how long it took, or its error. It pauses for 30 us first: a
// server does other work for about that long between two steps, and meanwhile the other threads
// fall asleep.
absl::StatusOr<std::chrono::nanoseconds> TimeStep(absl::FunctionRef<absl::Status()> step);

}  // namespace aft
