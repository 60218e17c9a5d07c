// Of ContinuousScheduler: which sequences have a row in a step that clients share.

#include <algorithm>
#include <cstddef>
#include <functional>

#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/step_shares.h"

namespace aft::server {

// Fills turns_ and shares_ with all that could have a row in this step or in a later one, and says
// whether a client has more of them for its weight than another one.
bool ContinuousScheduler::HasUnequalClients() {
  turns_.clear();
  shares_.clear();
  for (Sequence* sequence : live_) {
    const bool goes_on =
        sequence->phase_ == Sequence::Phase::kPrompt ||
        (sequence->phase_ == Sequence::Phase::kDecode && sequence->outputs_left_ > 0);
    if (goes_on) turns_.push_back(sequence);
  }
  const auto is_other = [this](const Sequence* sequence) {
    return queue_.account(*sequence) != queue_.account(*turns_.front());
  };
  if (std::none_of(turns_.begin(), turns_.end(), is_other)) return false;
  std::sort(turns_.begin(), turns_.end(), [this](const Sequence* a, const Sequence* b) {
    if (queue_.account(*a) != queue_.account(*b)) {
      return std::less<const FairAccount*>()(queue_.account(*a), queue_.account(*b));
    }
    return a->place_ < b->place_;
  });
  for (size_t i = 0; i < turns_.size(); ++i) {
    const Sequence& sequence = *turns_[i];
    if (i > 0 && queue_.account(sequence) == queue_.account(*turns_[i - 1])) {
      ++shares_.back().rows;
    } else {
      shares_.push_back({.weight = sequence.weight(), .oldest = sequence.place_, .begin = i});
    }
  }
  return std::any_of(shares_.begin(), shares_.end(), [this](const ClientShare& share) {
    return share.load() != shares_.front().load();
  });
}

// Takes those that sit out from the step. Returns whether it is a small one.
bool ContinuousScheduler::TakeTurns(const StepCost& cost) {
  if (cost.row == 0 || !HasUnequalClients()) return false;
  const double target = Seconds(options_.itl_target);
  if (cost.fixed + cost.row * static_cast<double>(turns_.size()) <= target) return false;
  // A prompt's tokens would hide what rows cost.
  const bool reads = std::any_of(turns_.begin(), turns_.end(), [](const Sequence* sequence) {
    return sequence->in_step_ && sequence->phase_ == Sequence::Phase::kPrompt;
  });
  const bool small = !reads && shared_steps_++ % kSmallStep == 0;
  if (!ShareStep(cost, target, small, shares_)) return false;
  for (const ClientShare& share : shares_) {
    int64_t left = share.in_step;
    for (int64_t i = 0; i < share.rows; ++i) {
      Sequence& sequence = *turns_[share.begin + static_cast<size_t>(i)];
      if (!sequence.in_step_) continue;
      sequence.in_step_ = left-- > 0;
      if (!sequence.in_step_ || ++sequence.turn_steps_ < kTurnSteps) continue;
      sequence.turn_steps_ = 0;
      sequence.place_ = ++last_place_;
    }
  }
  return small;
}

}  // namespace aft::server
