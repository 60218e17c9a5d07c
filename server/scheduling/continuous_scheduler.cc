#include "server/scheduling/continuous_scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace aft::server {

ContinuousScheduler::ContinuousScheduler(int32_t slots, int64_t max_step_tokens, int max_in_flight)
    : max_step_tokens_(max_step_tokens), max_in_flight_(max_in_flight), slots_(slots) {
  AFT_CHECK(slots >= 1 && max_step_tokens > slots && max_in_flight >= 1);
}

void ContinuousScheduler::Add(Sequence& sequence) {
  AFT_CHECK(sequence.phase_ == Sequence::Phase::kIdle && sequence.position_ == 0);
  sequence.phase_ = Sequence::Phase::kWaiting;
  waiting_.push_back(&sequence);
}

void ContinuousScheduler::Remove(Sequence& sequence) {
  if (sequence.phase_ == Sequence::Phase::kIdle) return;
  if (sequence.phase_ == Sequence::Phase::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  } else {
    live_.erase(std::find(live_.begin(), live_.end(), &sequence));
    Flight* last = nullptr;
    for (const auto& flight : in_flight_) {
      std::vector<Sequence*>& rows = flight->step.sequences;
      const auto row = std::find(rows.begin(), rows.end(), &sequence);
      if (row == rows.end()) continue;
      *row = nullptr;
      last = flight.get();
    }
    if (last != nullptr) {
      last->releases.push_back(sequence.slot_);
    } else {
      slots_.Release(sequence.slot_);
    }
    sequence.slot_ = -1;
  }
  sequence.phase_ = Sequence::Phase::kIdle;
}

const Step* ContinuousScheduler::Schedule() {
  AFT_CHECK(in_flight() < max_in_flight_);
  if (retired_ != nullptr) spare_.push_back(std::move(retired_));
  if (spare_.empty()) spare_.push_back(std::make_unique<Flight>());
  std::unique_ptr<Flight> flight = std::move(spare_.back());
  spare_.pop_back();
  step_ = &flight->step;
  step_->input.rows.clear();
  step_->sequences.clear();
  step_->started.clear();
  step_->prompt_tokens = 0;
  StartWaiting();

  prompts_.clear();
  for (Sequence* sequence : live_) {
    if (sequence->phase_ == Sequence::Phase::kPrompt) prompts_.push_back(sequence);
    if (sequence->phase_ == Sequence::Phase::kDecode) AddDecodeRow(*sequence);
  }
  const auto decodes = static_cast<int64_t>(step_->sequences.size());
  SharePrompts(max_step_tokens_ - decodes);

  for (size_t i = 0; i < prompts_.size(); ++i) AddPromptRow(*prompts_[i], chunks_[i]);
  step_->tokens = decodes + step_->prompt_tokens;
  if (step_->sequences.empty()) {
    spare_.push_back(std::move(flight));
    return nullptr;
  }
  in_flight_.push_back(std::move(flight));
  return step_;
}

const Step& ContinuousScheduler::Retire() {
  AFT_CHECK(!in_flight_.empty());
  if (retired_ != nullptr) spare_.push_back(std::move(retired_));
  retired_ = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const int32_t slot : retired_->releases) slots_.Release(slot);
  retired_->releases.clear();
  return retired_->step;
}

void ContinuousScheduler::Sampled(Sequence& sequence, TokenId token) {
  AFT_CHECK(sequence.phase_ == Sequence::Phase::kDecode && sequence.pending_ > 0);
  --sequence.pending_;
  sequence.next_token_ = token;
}

void ContinuousScheduler::StartWaiting() {
  while (!waiting_.empty() && slots_.free() > 0) {
    Sequence* sequence = waiting_.front();
    waiting_.pop_front();
    sequence->slot_ = slots_.Acquire();
    sequence->phase_ = Sequence::Phase::kPrompt;
    live_.push_back(sequence);
    step_->started.push_back(sequence);
  }
}

void ContinuousScheduler::AddDecodeRow(Sequence& sequence) {
  if (sequence.outputs_left_ == 0) return;  // the last ones are under way
  StepRow& row = AddRow(sequence);
  row.tokens.push_back(sequence.pending_ > 0 ? kLastSampled : sequence.next_token_);
  ++sequence.position_;
  AskForToken(sequence, row);
}

void ContinuousScheduler::AskForToken(Sequence& sequence, StepRow& row) {
  row.output = RowOutput::kLast;
  ++sequence.pending_;
  --sequence.outputs_left_;
}

// Sets chunks_[i], the tokens of prompts_[i] in this step; see the class comment for the rule.
void ContinuousScheduler::SharePrompts(int64_t budget) {
  const auto count = static_cast<int64_t>(prompts_.size());
  chunks_.assign(prompts_.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    const int64_t behind = count - 1 - i;
    const int64_t spare = budget - behind;  // at least 1: one token is kept for each one behind
    const int64_t share = behind == 0 ? spare : (spare + 1) / 2;
    chunks_[index] = std::min(share, prompts_[index]->prompt_left());
    budget -= chunks_[index];
  }
  for (size_t i = 0; i < prompts_.size() && budget > 0; ++i) {
    const int64_t more = std::min(budget, prompts_[i]->prompt_left() - chunks_[i]);
    chunks_[i] += more;
    budget -= more;
  }
}

void ContinuousScheduler::AddPromptRow(Sequence& sequence, int64_t tokens) {
  StepRow& row = AddRow(sequence);
  const auto first = sequence.prompt_.begin() + sequence.position_;
  const auto last = first + tokens;
  row.tokens.assign(first, last);
  sequence.position_ += tokens;
  step_->prompt_tokens += tokens;
  const bool complete = sequence.prompt_left() == 0;
  if (sequence.purpose_ == Sequence::Purpose::kScore) {
    row.output = RowOutput::kScore;
    row.targets.assign(first + 1, complete ? last : last + 1);
    if (complete) sequence.phase_ = Sequence::Phase::kScored;
  } else if (complete) {
    AskForToken(sequence, row);
    sequence.phase_ = Sequence::Phase::kDecode;
  }
  if (complete) sequence.prompt_ = {};  // a decode of any length must not hold on to a long prompt
}

StepRow& ContinuousScheduler::AddRow(Sequence& sequence) {
  step_->sequences.push_back(&sequence);
  StepRow& row = step_->input.rows.emplace_back();
  row.slot = sequence.slot_;
  row.first_position = sequence.position_;
  return row;
}

}  // namespace aft::server
