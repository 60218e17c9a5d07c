#pragma once

#include <cstdint>
#include <limits>

#include "server/scheduling/time.h"

namespace aft::server {

// How many tokens of prompts a step may have beside decodes, so that it takes no longer than a
// target. Learns from the steps that have run what a step of decodes alone takes, and a token of a
// prompt beyond that. A step that stalls (a host that is suspended, a page that is read back) says
// little of the next one, so it counts for no more than kOutlier usual ones. Thread-compatible.
class StepPacer {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Zero: no target.
  explicit StepPacer(Duration target) : target_(Seconds(target)) {}

  // A step with so many decode rows and tokens of prompts has taken `time`.
  void Observe(int64_t decodes, int64_t prompt_tokens, Duration time);

  // For the next step that has decodes. kNoLimit while nothing was measured; may be 0.
  int64_t PromptTokens() const;

  // Of one token of a prompt, in seconds; 0 while nothing was measured.
  double prompt_token_seconds() const { return tokens_ > 0 ? seconds_ / tokens_ : 0; }

 private:
  // Of what was seen before, after each step: some ten steps count.
  static constexpr double kKeep = 0.9;
  // A step that takes so many times what was expected, or was expected to take so many times what
  // it took, is no measurement like the others.
  static constexpr double kOutlier = 8;
  // Of the target, what is planned for: steps of one size differ.
  static constexpr double kPlanned = 0.8;

  const double target_;
  double decode_seconds_ = 0;  // of a step without prompts
  // Sums over steps with prompts: of the steps, of what those took, of that beyond their decodes,
  // and of their tokens.
  double steps_ = 0;
  double whole_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace aft::server
