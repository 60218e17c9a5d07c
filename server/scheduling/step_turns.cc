#include "server/scheduling/step_turns.h"

#include <algorithm>

namespace aft::server {
namespace {

// A prompt's row has a cost beyond that of its tokens, so a share up to this is not divided.
constexpr int64_t kSmallPiece = 16;

}  // namespace

void StepTurns::Add(Sequence& sequence) {
  turns_.push_back(&sequence);
  sequence.turn_steps_ = 0;
}

void StepTurns::Remove(Sequence& sequence) {
  turns_.erase(std::find(turns_.begin(), turns_.end(), &sequence));
}

// The share of the client of turns_[turn].
ClientShare& StepTurns::ShareOf(size_t turn) {
  const FairAccount* const account = queue_.account(*turns_[turn]);
  const bool known = account->share < shares_.size() &&
                     queue_.account(*turns_[shares_[account->share].oldest]) == account;
  if (!known) {
    account->share = shares_.size();
    shares_.push_back({.weight = account->weight, .tokens = 0, .oldest = turn});
  }
  return shares_[account->share];
}

// Fills shares_ with what clients could use of this step, or of a later one if their sequence sits
// out now. Returns whether one could use more for its weight than another.
bool StepTurns::HasUnequalClients(int64_t prompt_budget) {
  shares_.clear();
  for (size_t i = 0; i < turns_.size(); ++i) {
    const Sequence& sequence = *turns_[i];
    if (sequence.decodes()) {
      ++ShareOf(i).tokens;
    } else if (sequence.phase_ == Sequence::Phase::kPrompt) {
      ClientShare& share = ShareOf(i);
      const int64_t tokens = std::min(std::max<int64_t>(sequence.next_prompt_tokens(), 1),
                                      prompt_budget - share.prompt_tokens);
      share.prompt_tokens += tokens;
      share.tokens += tokens;
    }
  }
  return std::any_of(shares_.begin(), shares_.end(), [this](const ClientShare& share) {
    return share.load() != shares_.front().load();
  });
}

void StepTurns::Share(int64_t prompt_budget, const StepCost& cost, Step& step) {
  if (cost.token == 0) return;
  // The room for prompts, next to one token for each of the others.
  const int64_t room = options_.max_step_tokens - static_cast<int64_t>(turns_.size()) + 1;
  if (!HasUnequalClients(std::clamp<int64_t>(prompt_budget, 1, room))) return;
  double tokens = 0;
  for (const ClientShare& share : shares_) tokens += static_cast<double>(share.tokens);
  const double target = Seconds(options_.itl_target);
  if (cost.fixed + cost.token * tokens <= target) return;
  const bool small = shared_steps_++ % kSmallStep == 0;
  step.shared = ShareStep(cost, target, small, shares_);
  if (!step.shared) return;
  step.small = small;
  TakeTurns(small);
}

// Divides the shares of clients among their sequences.
void StepTurns::TakeTurns(bool small) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    ClientShare& share = shares_[i];
    const Sequence& first = *turns_[share.oldest];
    queue_.account(first)->share = i;  // ShareStep has changed their order
    // Half of it is for prompts. The odd token goes to the kind that is first in the order of
    // turns, so that neither prompts nor decodes wait for ever.
    const int64_t half = (share.in_step + (first.phase_ == Sequence::Phase::kPrompt ? 1 : 0)) / 2;
    const int64_t decodes = share.tokens - share.prompt_tokens;
    share.prompt_tokens = std::min(share.prompt_tokens, std::max(half, share.in_step - decodes));
    // In a small step the cost of prompt rows would hide the cost of a step without them.
    if (small && share.cut) share.prompt_tokens = 0;
    share.in_step -= share.prompt_tokens;
  }
  for (size_t i = 0; i < turns_.size(); ++i) {
    Sequence& sequence = *turns_[i];
    if (sequence.allowed_ == 0) continue;
    ClientShare& share = ShareOf(i);
    const bool reads = sequence.phase_ == Sequence::Phase::kPrompt;
    int64_t& left = reads ? share.prompt_tokens : share.in_step;
    const int64_t most = reads && left > kSmallPiece ? (left + 1) / 2 : left;
    sequence.allowed_ = std::min(sequence.allowed_, most);
    left -= sequence.allowed_;
    if (sequence.allowed_ == 0) continue;
    sequence.in_turn_ = ++sequence.turn_steps_ < kTurnSteps && share.cut;
  }
  for (size_t i = 0; i < turns_.size(); ++i) {
    Sequence& sequence = *turns_[i];
    if (sequence.allowed_ == 0 || sequence.phase_ != Sequence::Phase::kPrompt) continue;
    int64_t& left = ShareOf(i).prompt_tokens;
    const int64_t more = std::min(left, sequence.next_prompt_tokens() - sequence.allowed_);
    sequence.allowed_ += more;
    left -= more;
  }
  const auto over = std::stable_partition(
      turns_.begin(), turns_.end(),
      [](const Sequence* sequence) { return sequence->turn_steps_ < kTurnSteps; });
  std::for_each(over, turns_.end(), [](Sequence* sequence) { sequence->turn_steps_ = 0; });
}

}  // namespace aft::server
