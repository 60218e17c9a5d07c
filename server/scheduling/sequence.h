#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/api/model_runner.h"

namespace aft::server {

// One sequence as the scheduler sees it: which tokens the model still has to consume. Owned by the
// engine, moved through its phases by ContinuousScheduler alone. Thread-compatible.
class Sequence {
 public:
  enum class Phase {
    kIdle,     // not with a scheduler
    kWaiting,  // for a slot
    kPrompt,   // owns a slot; prompt tokens are left
    kDecode,   // owns a slot; one sampled token at a time
    kScored,   // owns a slot; the model has all of the text, and nothing follows
  };
  enum class Purpose {
    kGenerate,  // continue the prompt
    kScore,     // the log-probability of each of the prompt's tokens but the first
  };

  // `max_outputs`: tokens that may be generated; no step samples more, even where steps run ahead
  // of their results. REQUIRES: `prompt` is not empty; max_outputs >= 1.
  explicit Sequence(std::vector<TokenId> prompt, Purpose purpose = Purpose::kGenerate,
                    int64_t max_outputs = std::numeric_limits<int64_t>::max())
      : purpose_(purpose),
        prompt_(std::move(prompt)),
        prompt_size_(static_cast<int64_t>(prompt_.size())),
        outputs_left_(max_outputs) {
    AFT_CHECK(!prompt_.empty() && max_outputs >= 1);
  }
  Sequence(const Sequence&) = delete;  // schedulers hold pointers
  Sequence& operator=(const Sequence&) = delete;

  Purpose purpose() const { return purpose_; }
  Phase phase() const { return phase_; }
  // -1 while it owns none.
  int32_t slot() const { return slot_; }
  // Tokens handed to the model so far; the position of the next one.
  int64_t position() const { return position_; }
  int64_t prompt_size() const { return prompt_size_; }
  int64_t prompt_left() const { return position_ < prompt_size_ ? prompt_size_ - position_ : 0; }

 private:
  friend class ContinuousScheduler;

  const Purpose purpose_;
  Phase phase_ = Phase::kIdle;
  int32_t slot_ = -1;
  int64_t position_ = 0;
  std::vector<TokenId> prompt_;  // emptied once the model has all of it
  int64_t prompt_size_;
  int64_t outputs_left_;     // tokens that no step has been asked for yet
  int pending_ = 0;          // tokens that steps were asked for and that are not known yet
  TokenId next_token_ = -1;  // known, not yet consumed; when pending_ == 0
};

}  // namespace aft::server
