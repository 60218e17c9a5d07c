#include "model/runtime/step_threads.h"

#include <algorithm>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft {
namespace {

// Runs up to five steps with each number of threads, in turn, so that a disturbance hits all of
// them, for about 20 ms or at least one step of each. Returns the smallest number that is about as
// fast as the best. The fastest step counts, because a model that is loaded while other programs
// use the cores would otherwise be left with one thread for good.
absl::StatusOr<int> Fastest(const std::vector<int>& candidates, int64_t tokens,
                            StepThreads::Step step) {
  constexpr int kRounds = 5;
  constexpr std::chrono::milliseconds kMost(20);
  std::vector<std::chrono::nanoseconds> least(candidates.size(), std::chrono::nanoseconds::max());
  std::chrono::nanoseconds spent{0};
  for (int round = 0; round < kRounds && spent < kMost; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      AFT_ASSIGN_OR_RETURN(const std::chrono::nanoseconds time, step(tokens, candidates[i]));
      least[i] = std::min(least[i], time);
      spent += time;
    }
  }
  const auto enough = *std::min_element(least.begin(), least.end()) * 10 / 9;
  const auto chosen =
      std::find_if(least.begin(), least.end(), [&](auto time) { return time <= enough; });
  return candidates[static_cast<size_t>(chosen - least.begin())];
}

std::string Counted(int threads) {
  return absl::StrCat(threads, threads == 1 ? " thread" : " threads");
}

}  // namespace

absl::StatusOr<StepThreads> StepThreads::Measure(int threads, int64_t most_tokens, Step step) {
  AFT_CHECK(threads >= 1 && most_tokens >= 1);
  StepThreads chosen(1);
  chosen.threads_.clear();
  int used = 1;
  for (int64_t tokens = 1; used < threads && tokens <= most_tokens; tokens *= 2) {
    std::vector<int> candidates;
    for (int candidate = used; candidate < threads; candidate *= 2) candidates.push_back(candidate);
    candidates.push_back(threads);
    AFT_ASSIGN_OR_RETURN(used, Fastest(candidates, tokens, step));
    chosen.threads_.push_back(used);
  }
  chosen.threads_.push_back(threads);
  return chosen;
}

int StepThreads::For(int64_t tokens) const {
  const auto size = static_cast<size_t>(absl::bit_width(static_cast<uint64_t>(tokens)) - 1);
  return threads_[std::min(size, threads_.size() - 1)];
}

std::string StepThreads::ToString() const {
  std::string text;
  for (size_t i = 1; i < threads_.size(); ++i) {
    if (threads_[i] == threads_[i - 1]) continue;
    absl::StrAppend(&text, Counted(threads_[i - 1]), " below ", int64_t{1} << i, " tokens, ");
  }
  return absl::StrCat(text, text.empty() ? "" : "then ", Counted(threads_.back()));
}

absl::StatusOr<std::chrono::nanoseconds> TimeStep(absl::FunctionRef<absl::Status()> step) {
  const auto pause_ends = std::chrono::steady_clock::now() + std::chrono::microseconds(30);
  while (std::chrono::steady_clock::now() < pause_ends) {
  }
  const auto start = std::chrono::steady_clock::now();
  AFT_RETURN_IF_ERROR(step());
  return std::chrono::steady_clock::now() - start;
}

}  // namespace aft
