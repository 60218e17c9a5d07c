#include "tests/support/fake_model_runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/snapshot.h"
#include "model/sampling/logit_rules.h"
#include "model/sampling/token_counts.h"

namespace aft {
namespace {

// The fingerprints in snapshots.
constexpr uint64_t kModel = 1;
constexpr uint64_t kLayout = 2;

void AddHidden(uint64_t hash, std::vector<float>& vectors) {
  for (int64_t i = 0; i < FakeModelRunner::kHiddenWidth; ++i) {
    vectors.push_back(static_cast<float>(hash >> (8 * i) & 0xFF) - 128.0F);
  }
}

}  // namespace

void FakeModelControl::FailNext(FakeCall call, absl::Status status) {
  MutexLock lock(mutex_);
  failures_[call] = std::move(status);
}

std::vector<StepInput> FakeModelControl::steps() const {
  MutexLock lock(mutex_);
  return steps_;
}

int64_t FakeModelControl::step_count() const {
  MutexLock lock(mutex_);
  return step_count_;
}

int64_t FakeModelControl::row_count() const {
  MutexLock lock(mutex_);
  return row_count_;
}

void FakeModelControl::DropInputs() {
  MutexLock lock(mutex_);
  record_inputs_ = false;
  steps_.clear();
}

std::vector<std::string> FakeModelControl::violations() const {
  MutexLock lock(mutex_);
  return violations_;
}

void FakeModelControl::EnterStep(const StepInput& input) {
  Enter();
  MutexLock lock(mutex_);
  ++step_count_;
  row_count_ += static_cast<int64_t>(input.rows.size());
  if (record_inputs_) steps_.push_back(input);
}

absl::Status FakeModelControl::TakeFailure(FakeCall call) {
  MutexLock lock(mutex_);
  return std::exchange(failures_[call], absl::OkStatus());
}

void FakeModelControl::Violation(std::string text) {
  MutexLock lock(mutex_);
  violations_.push_back(std::move(text));
}

FakeModelRunner::FakeModelRunner(Options options, std::shared_ptr<FakeModelControl> control)
    : options_(std::move(options)),
      control_(std::move(control)),
      sequences_({.slots = options_.slots,
                  .max_step_tokens = options_.max_step_tokens,
                  .vocab_size = options_.vocab_size,
                  .max_seq_len = options_.max_seq_len}),
      slots_(static_cast<size_t>(options_.slots)) {
  info_.architecture = "fake";
  info_.tokenizer = options_.tokenizer;
  info_.vocab_size = options_.vocab_size;
  info_.max_seq_len = options_.max_seq_len;
  info_.hidden_width = kHiddenWidth;
  info_.pooling = Pooling::kLast;
  info_.state_bytes = options_.state_bytes;
  info_.fingerprint = options_.fingerprint;
  info_.numerics = options_.numerics;
  info_.generated_differ = options_.generated_differ;
  info_.weight_format = "fp32";
  info_.device = "cpu";
}

uint64_t FakeModelRunner::Consume(uint64_t hash, TokenId token, int64_t position) {
  hash ^= (static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15U;
  hash ^= (static_cast<uint64_t>(position) + 1) * 0xC2B2AE3D27D4EB4FU;
  hash *= 0xFF51AFD7ED558CCDU;
  return hash ^ (hash >> 32);
}

namespace {

// The first token that the rules permit, counted from `id` on and after the last token from 0 on.
// kNoToken: the rules permit no token.
TokenId Permitted(TokenId id, int64_t vocab_size, const SamplingParams& params,
                  uint64_t output_index, const std::vector<TokenId>& row_bans) {
  if ((params.rules == nullptr && row_bans.empty()) || id == kNoToken) return id;
  const LogitRules none;
  const LogitRules& all = params.rules != nullptr ? *params.rules : none;
  const std::vector<LogitRule>& rules = all.rules;
  for (int64_t tried = 0; tried < vocab_size; ++tried) {
    const auto candidate = static_cast<TokenId>((id + tried) % vocab_size);
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&](const LogitRule& one) { return one.id == candidate; });
    const bool listed = rule != rules.end();
    const bool banned = listed ? Ruled(0.0F, *rule, output_index < params.ends_from) == kBannedBias
                               : all.only_these;
    const bool in_row = std::find(row_bans.begin(), row_bans.end(), candidate) != row_bans.end();
    if (!banned && !in_row) return candidate;
  }
  return kNoToken;
}

}  // namespace

TokenId FakeModelRunner::NextToken(const Options& options, uint64_t hash, int64_t count,
                                   const SamplingParams& params, uint64_t output_index,
                                   const std::vector<TokenCount>& counts,
                                   const std::vector<TokenId>& banned) {
  if (options.not_finite && options.not_finite(params.seed, output_index)) return kNoToken;
  if (options.next_token) {
    return Permitted(options.next_token(hash, count), options.vocab_size, params, output_index,
                     banned);
  }
  uint64_t drawn = Consume(hash ^ params.seed, static_cast<TokenId>(output_index), count);
  if (PenaltiesOf(params).any()) {
    for (const TokenCount& count_of : counts) {
      const float times = TimesAt(count_of, params.penalty_decay, output_index);
      drawn = Consume(drawn, std::bit_cast<int32_t>(times), count_of.use >> 30);
    }
  }
  if (params.rules != nullptr) {
    for (const LogitRule& rule : params.rules->rules) {
      if (rule.bias == 0.0F || rule.bias == kBannedBias) continue;
      drawn = Consume(drawn, rule.id, static_cast<int64_t>(rule.bias * 1024.0F));
    }
  }
  const auto id = static_cast<TokenId>(drawn % static_cast<uint64_t>(options.vocab_size));
  return Permitted(id, options.vocab_size, params, output_index, banned);
}

SampledToken FakeModelRunner::ScoreToken(uint64_t hash, TokenId target, int32_t top_logprobs) {
  SampledToken scored;
  scored.id = target;
  scored.logprob = -static_cast<float>(Consume(hash, target, 0) % 1000) / 100.0F;
  for (int32_t i = 0; i < top_logprobs; ++i) {
    scored.top.push_back({.id = i, .logprob = -1.0F - static_cast<float>(i)});
  }
  return scored;
}

std::vector<SampledToken> FakeModelRunner::Score(const std::vector<TokenId>& text,
                                                 int32_t top_logprobs) {
  std::vector<SampledToken> scores;
  uint64_t hash = kEmptyHash;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    hash = Consume(hash, text[i], static_cast<int64_t>(i));
    scores.push_back(ScoreToken(hash, text[i + 1], top_logprobs));
  }
  return scores;
}

std::vector<float> FakeModelRunner::Hidden(const std::vector<TokenId>& text) {
  std::vector<float> vectors;
  uint64_t hash = kEmptyHash;
  for (size_t i = 0; i < text.size(); ++i) {
    hash = Consume(hash, text[i], static_cast<int64_t>(i));
    AddHidden(hash, vectors);
  }
  return vectors;
}

std::vector<TokenId> FakeModelRunner::Generate(const Options& options,
                                               const std::vector<TokenId>& prompt,
                                               const SamplingParams& params, int64_t count) {
  Text text(options);
  text.Read(prompt);
  return text.Sample(params, count);
}

void FakeModelRunner::Text::Read(const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    hash_ = Consume(hash_, token, position_++);
    had_[token] += 0;
  }
}

void FakeModelRunner::Text::BeginOutput() {
  for (const TokenId token : output_) ++had_[token];
  output_.clear();
}

std::vector<TokenId> FakeModelRunner::Text::Sample(
    const SamplingParams& params, int64_t count,
    const std::vector<std::vector<TokenId>>& bad_words) {
  std::vector<TokenId> output;
  while (static_cast<int64_t>(output.size()) < count) {
    std::vector<TokenId> banned;
    for (const std::vector<TokenId>& word : bad_words) {
      const auto before = static_cast<std::ptrdiff_t>(word.size()) - 1;
      if (static_cast<std::ptrdiff_t>(output_.size()) >= before &&
          std::equal(word.begin(), word.end() - 1, output_.end() - before)) {
        banned.push_back(word.back());
      }
    }
    std::vector<TokenUse> had;
    for (const auto& [id, sampled] : had_) had.push_back({.id = id, .sampled = sampled});
    std::vector<TokenCount> counts;
    CountTokens({params, outputs_, had, output_}, options_->vocab_size, counts);
    const TokenId token =
        NextToken(*options_, hash_, position_, params, outputs_++, counts, banned);
    output.push_back(token);
    CountAndRead(token);
  }
  return output;
}

void FakeModelRunner::Text::Replay(const std::vector<TokenId>& output) {
  outputs_ += output.size();
  for (const TokenId token : output) CountAndRead(token);
}

void FakeModelRunner::Text::CountAndRead(TokenId token) {
  Read({token});
  output_.push_back(token);
}

namespace {

struct FakeKept final : KeptState {
  int64_t bytes() const override { return static_cast<int64_t>(memory.size()); }
  absl::StatusOr<std::string> Snapshot() const override {
    AFT_CHECK(on_host);
    std::string snapshot = BeginSnapshot(kModel, kLayout, position, bytes());
    std::memcpy(snapshot.data() + SnapshotHeaderBytes(), &hash, sizeof(hash));
    SealSnapshot(&snapshot);
    return snapshot;
  }
  const FakeModelRunner* runner = nullptr;
  bool on_host = false;
  std::string memory;
  int64_t position = 0;
  uint64_t hash = 0;
};

}  // namespace

absl::StatusOr<int64_t> FakeModelRunner::BindSlot(int32_t slot, const StateSource& from,
                                                  const SlotTerms& terms) {
  if (slot < 0 || slot >= options_.slots) {
    control_->Violation(absl::StrCat("BindSlot of slot ", slot));
    return absl::InvalidArgumentError("no such slot");
  }
  CheckIdle("BindSlot", slot);
  const bool is_new = std::holds_alternative<NewSequence>(from);
  if (!is_new) AFT_RETURN_IF_ERROR(control_->TakeFailure(FakeCall::kRestore));
  AFT_ASSIGN_OR_RETURN(const auto state, StateOf(from));
  sequences_.Bind(slot, state.first, terms);
  Slot& bound = slots_[static_cast<size_t>(slot)];
  bound.bound = is_new;
  // A new sequence keeps the old hash here: only a row at position 0 may reset it.
  if (!is_new) bound.hash = state.second;
  const bool penalties = PenaltiesOf(terms.sampling).any();
  bound.counts.clear();
  if (penalties) CountTokens(terms, options_.vocab_size, bound.counts);
  return state.first;
}

absl::StatusOr<std::pair<int64_t, uint64_t>> FakeModelRunner::StateOf(
    const StateSource& from) const {
  if (const auto* const fork = std::get_if<ForkOf>(&from)) {
    CheckIdle("a fork", fork->slot);
    const int64_t position = sequences_.sequence(fork->slot).next_position;
    if (position == 0) control_->Violation("a fork of nothing");
    return std::pair(position, slots_[static_cast<size_t>(fork->slot)].hash);
  }
  if (const auto* const kept = std::get_if<const KeptState*>(&from)) {
    const auto& state = dynamic_cast<const FakeKept&>(**kept);
    if (state.runner != this) control_->Violation("a kept state of another runner");
    return std::pair(state.position, state.hash);
  }
  if (const auto* const snapshot = std::get_if<absl::string_view>(&from)) {
    AFT_ASSIGN_OR_RETURN(const OpenedSnapshot opened, OpenSnapshot(*snapshot, kModel, kLayout));
    uint64_t hash = 0;
    std::memcpy(&hash, opened.state.data(), sizeof(hash));
    return std::pair(opened.position, hash);
  }
  return std::pair(int64_t{0}, uint64_t{0});
}

absl::StatusOr<std::shared_ptr<const KeptState>> FakeModelRunner::KeepSlot(int32_t slot,
                                                                           KeptIn memory) {
  CheckIdle("KeepSlot", slot);
  AFT_RETURN_IF_ERROR(control_->TakeFailure(FakeCall::kKeep));
  auto kept = std::make_shared<FakeKept>();
  kept->runner = this;
  kept->on_host = memory == KeptIn::kHost;
  const absl::Status allocated = Catching([&] {
    kept->memory.resize(static_cast<size_t>(options_.state_bytes));
    return absl::OkStatus();
  });
  if (!allocated.ok()) return allocated;
  kept->position = sequences_.sequence(slot).next_position;
  kept->hash = slots_[static_cast<size_t>(slot)].hash;
  return kept;
}

void FakeModelRunner::CheckIdle(const char* call, int32_t slot) const {
  for (const Flight& flight : flights_) {
    if (std::find(flight.slots.begin(), flight.slots.end(), slot) == flight.slots.end()) continue;
    control_->Violation(absl::StrCat(call, " of slot ", slot, ", which is in a step"));
  }
}

absl::StatusOr<ModelRunner::Ticket> FakeModelRunner::Submit(const StepInput& input) {
  control_->EnterStep(input);
  if (prepared_ != std::this_thread::get_id()) {
    control_->Violation("a step from a thread that is not prepared");
  }
  if (static_cast<int>(flights_.size()) >= options_.max_steps_in_flight) {
    control_->Violation("too many steps uncollected");
  }
  AFT_RETURN_IF_ERROR(control_->TakeFailure(FakeCall::kSubmit));
  ++last_ticket_;
  if (absl::Status status = Check(input); !status.ok()) {
    control_->Violation(std::string(status.message()));
    return status;
  }
  for (const StepRow& row : input.rows) {
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    const bool banned = !row.banned.empty();
    if (std::exchange(slot.banned, banned) || banned) CheckIdle("bans", row.slot);
  }
  Flight flight;
  flight.ticket = last_ticket_;
  for (const StepRow& row : input.rows) {
    flight.slots.push_back(row.slot);
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    SequenceRecord& sequence = sequences_.sequence(row.slot);
    if (row.first_position == 0) slot.hash = kEmptyHash;
    int64_t position = row.first_position;
    std::vector<SampledToken> scores;
    std::vector<float> hidden;
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const TokenId token = row.tokens[i] == kLastSampled ? sequence.last_sampled : row.tokens[i];
      slot.hash = Consume(slot.hash, token, position++);
      if (!slot.counts.empty()) {
        TokenCount& count = slot.counts[static_cast<size_t>(token)];
        count = WithSeen(count);
      }
      const auto finite = [&] {
        return !options_.next_token || options_.next_token(slot.hash, position) != kNoToken;
      };
      if (position > row.end() - row.hidden) {
        AddHidden(slot.hash, hidden);
        if (!finite()) hidden.back() = NAN;
      }
      if (i >= row.targets.size()) continue;
      scores.push_back(ScoreToken(slot.hash, row.targets[i], sequence.params.top_logprobs));
      if (!finite()) scores.back().id = kNoToken;
    }
    slot.bound = false;
    if (row.output == RowOutput::kHidden) flight.output.hidden.push_back(std::move(hidden));
    if (row.output == RowOutput::kScore) flight.output.scored.push_back(std::move(scores));
    if (row.output != RowOutput::kLast) continue;
    SampledToken sampled;
    const uint64_t index = sequence.sampled++;
    sampled.id =
        NextToken(options_, slot.hash, position, sequence.params, index, slot.counts, row.banned);
    if (!slot.counts.empty() && sampled.id != kNoToken) {
      CountSample(sequence.params, sampled.id, index, slot.counts.data());
    }
    if (sequence.params.top_logprobs >= 0) sampled.logprob = -1.0F;
    for (int32_t i = 0; i < sequence.params.top_logprobs; ++i) {
      sampled.top.push_back({.id = i, .logprob = -1.0F - static_cast<float>(i)});
    }
    sequence.last_sampled = sampled.id;
    flight.output.sampled.push_back(std::move(sampled));
  }
  sequences_.Advance(input);
  flights_.push_back(std::move(flight));
  return last_ticket_;
}

absl::Status FakeModelRunner::Collect(Ticket ticket, StepOutput& output) {
  if (flights_.empty() || ticket != flights_.front().ticket) {
    control_->Violation("Collect of a ticket that is not the oldest");
    return absl::FailedPreconditionError("not the oldest step");
  }
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (absl::Status failure = control_->TakeFailure(FakeCall::kCollect); !failure.ok()) {
    for (const int32_t slot : flight.slots) {
      sequences_.sequence(slot).next_position = -1;  // undefined from now on
    }
    return failure;
  }
  output = std::move(flight.output);
  return absl::OkStatus();
}

absl::Status FakeModelRunner::Check(const StepInput& input) {
  if (input.rows.empty()) return absl::InvalidArgumentError("a step without rows");
  AFT_RETURN_IF_ERROR(sequences_.Check(input));
  for (const StepRow& row : input.rows) {
    if (row.first_position == 0 && !slots_[static_cast<size_t>(row.slot)].bound) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot ", row.slot, " starts without BindSlot"));
    }
    for (size_t i = 0; i < row.targets.size() && i + 1 < row.tokens.size(); ++i) {
      if (row.targets[i] == row.tokens[i + 1]) continue;
      return absl::InvalidArgumentError("a target that is not the next token");
    }
  }
  return absl::OkStatus();
}

}  // namespace aft
