#include "server/scheduling/step_pacer.h"

#include <algorithm>

namespace aft::server {

void StepPacer::Observe(int64_t decodes, int64_t prompt_tokens, Duration time) {
  const double seconds = Seconds(time);
  if (prompt_tokens == 0) {
    const bool first = decode_seconds_ == 0;
    decode_seconds_ = first ? seconds : kKeep * decode_seconds_ + (1 - kKeep) * seconds;
    return;
  }
  double decode_seconds = 0;
  if (decodes > 0) {
    // No step with prompts is shorter than one without: fewer streams decode than at that time.
    decode_seconds_ = std::min(decode_seconds_, seconds);
    decode_seconds = decode_seconds_;
  }
  seconds_ = kKeep * seconds_ + seconds - decode_seconds;
  tokens_ = kKeep * tokens_ + static_cast<double>(prompt_tokens);
}

int64_t StepPacer::PromptTokens() const {
  const double token_seconds = prompt_token_seconds();
  if (target_ == 0 || token_seconds == 0) return kNoLimit;
  const double left = kPlanned * target_ - decode_seconds_;
  if (left <= 0) return 0;
  return static_cast<int64_t>(std::min(left / token_seconds, 1e9));
}

}  // namespace aft::server
