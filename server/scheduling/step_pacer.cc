#include "server/scheduling/step_pacer.h"

#include <algorithm>

namespace aft::server {

void StepPacer::Observe(int64_t decodes, int64_t prompt_tokens, Duration time) {
  double seconds = Seconds(time);
  if (prompt_tokens == 0) {
    if (decode_seconds_ == 0) decode_seconds_ = seconds;
    seconds = std::min(seconds, kOutlier * decode_seconds_);
    decode_seconds_ = kKeep * decode_seconds_ + (1 - kKeep) * seconds;
    return;
  }
  const auto tokens = static_cast<double>(prompt_tokens);
  const double expected = tokens * prompt_token_seconds();
  // No machine is faster than it is, so the steps before this one had stalled.
  const bool stalled_before = kOutlier * seconds < expected;
  if (stalled_before) steps_ = whole_ = seconds_ = tokens_ = 0;
  if (whole_ > 0) seconds = std::min(seconds, kOutlier * std::max(expected, whole_ / steps_));
  steps_ = kKeep * steps_ + 1;
  whole_ = kKeep * whole_ + seconds;
  if (decodes > 0) {
    // No step with prompts is shorter than one without, so fewer streams decode than at that time.
    decode_seconds_ = std::min(decode_seconds_, seconds);
    if (!stalled_before) seconds -= decode_seconds_;
  }
  seconds_ = kKeep * seconds_ + seconds;
  tokens_ = kKeep * tokens_ + tokens;
}

int64_t StepPacer::PromptTokens() const {
  const double token_seconds = prompt_token_seconds();
  if (target_ == 0 || token_seconds == 0) return kNoLimit;
  const double planned = std::max(kPlanned * target_, kLeastStep * decode_seconds_);
  return static_cast<int64_t>(std::min((planned - decode_seconds_) / token_seconds, 1e9));
}

}  // namespace aft::server
