#pragma once

#include <cstdint>
#include <limits>

#include "server/scheduling/time.h"

namespace aft::server {

// Limits the tokens of prompts in a step with decodes, so that the step takes no longer than a
// target, or than kLeastStep times the decodes alone if that is longer. Learns from past steps how
// long a step of decodes alone takes, and how much time a prompt token adds. A step that stalls,
// because the host was suspended or memory was swapped out, says little about the next one. So its
// time counts as at most kOutlier times the expected one. Thread-compatible.
class StepPacer {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Zero: there is no target.
  explicit StepPacer(Duration target) : target_(Seconds(target)) {}

  // A step with this number of decode rows and of prompt tokens has taken `time`.
  void Observe(int64_t decodes, int64_t prompt_tokens, Duration time);

  // The limit for the next step that has decodes. kNoLimit while nothing was measured; may be 0.
  int64_t PromptTokens() const;

  // The time for one prompt token; 0 while nothing was measured.
  double prompt_token_seconds() const { return tokens_ > 0 ? seconds_ / tokens_ : 0; }

 private:
  // The weight of all past steps after each new one: about ten steps count.
  static constexpr double kKeep = 0.9;
  // A step is an outlier if it takes more than this many times the expected time, or less than the
  // expected time divided by it.
  static constexpr double kOutlier = 8;
  // The part of the target that is planned for, because steps of one size differ.
  static constexpr double kPlanned = 0.8;
  // A step with prompts may always take this many times as long as its decodes. Otherwise prompts
  // would wait for streams to end where decodes alone take the target or more.
  static constexpr double kLeastStep = 1.25;

  const double target_;
  double decode_seconds_ = 0;  // of a step without prompts
  // Sums over steps with prompts: the number of steps, their time, their time beyond that of their
  // decodes, and their prompt tokens.
  double steps_ = 0;
  double whole_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace aft::server
