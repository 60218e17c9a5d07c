#include "model/runtime/step_rules.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft {
namespace {

template <typename... What>
absl::Status RowError(int64_t index, const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("row ", index, ": ", what...));
}

}  // namespace

StepRules::StepRules(const Limits& limits)
    : limits_(limits), slots_(static_cast<size_t>(limits.slots)) {}

SequenceRecord& StepRules::sequence(int32_t slot) {
  AFT_CHECK(slot >= 0 && slot < slots());
  return slots_[static_cast<size_t>(slot)].sequence;
}
const SequenceRecord& StepRules::sequence(int32_t slot) const {
  AFT_CHECK(slot >= 0 && slot < slots());
  return slots_[static_cast<size_t>(slot)].sequence;
}

void StepRules::Bind(int32_t slot, int64_t position, const SlotTerms& terms) {
  sequence(slot) = {
      .params = terms.sampling, .next_position = position, .sampled = terms.output_index};
  slots_[static_cast<size_t>(slot)].has_sampled = false;
}

absl::Status StepRules::Check(const StepInput& input) {
  ++checks_;
  size_t tokens = 0;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    AFT_RETURN_IF_ERROR(CheckRow(input.rows[i], static_cast<int64_t>(i)));
    tokens += input.rows[i].tokens.size();
  }
  if (tokens > static_cast<size_t>(limits_.max_step_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens in a step of at most ", limits_.max_step_tokens));
  }
  return absl::OkStatus();
}

absl::Status StepRules::CheckRow(const StepRow& row, int64_t index) {
  if (row.slot < 0 || row.slot >= slots()) {
    return RowError(index, "slot ", row.slot, " is out of range");
  }
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  if (slot.named_by == checks_) return RowError(index, "slot ", row.slot, " occurs twice");
  slot.named_by = checks_;
  if (row.tokens.empty()) return RowError(index, "no tokens");
  if (row.first_position != 0 && row.first_position != slot.sequence.next_position) {
    return RowError(index, "position ", row.first_position, ", but slot ", row.slot, " is at ",
                    slot.sequence.next_position);
  }
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (limits_.max_seq_len > 0 && row.first_position + length > limits_.max_seq_len) {
    return RowError(index, "position ", row.first_position + length - 1, " is beyond max_seq_len ",
                    limits_.max_seq_len);
  }
  return CheckTokens(row, index);
}

absl::Status StepRules::CheckTokens(const StepRow& row, int64_t index) const {
  const bool decode = row.tokens.size() == 1;
  for (const TokenId token : row.tokens) {
    if (token >= 0 && token < limits_.vocab_size) continue;
    if (token != kLastSampled) return RowError(index, "token ", token, " is out of range");
    if (decode && slots_[static_cast<size_t>(row.slot)].has_sampled) continue;
    return RowError(index, "token ", token, " is out of range: it stands for the last one that ",
                    decode ? "the slot sampled, and there is none"
                           : "was sampled, which is allowed only in a row of one token");
  }
  AFT_RETURN_IF_ERROR(CheckBanned(row, index));
  const bool is_hidden = row.output == RowOutput::kHidden;
  if (is_hidden ? row.hidden < 1 || row.hidden > static_cast<int64_t>(row.tokens.size())
                : row.hidden != 0) {
    return RowError(index, row.hidden, " hidden vectors of ", row.tokens.size(), " tokens");
  }
  if (row.output != RowOutput::kScore) {
    return row.targets.empty() ? absl::OkStatus()
                               : RowError(index, "targets, but nothing to score");
  }
  if (row.targets.size() > row.tokens.size() || row.targets.size() + 1 < row.tokens.size()) {
    return RowError(index, row.targets.size(), " targets for ", row.tokens.size(), " tokens");
  }
  for (const TokenId target : row.targets) {
    if (target < 0 || target >= limits_.vocab_size) {
      return RowError(index, "target ", target, " is out of range");
    }
  }
  return absl::OkStatus();
}

absl::Status StepRules::CheckBanned(const StepRow& row, int64_t index) const {
  const std::vector<TokenId>& banned = row.banned;
  if (banned.empty()) return absl::OkStatus();
  if (row.output != RowOutput::kLast) return RowError(index, "bans, but nothing to sample");
  if (banned.size() > kMaxRowBans) return RowError(index, banned.size(), " bans");
  for (size_t i = 0; i < banned.size(); ++i) {
    if (banned[i] < 0 || banned[i] >= limits_.vocab_size) {
      return RowError(index, "banned token ", banned[i], " is out of range");
    }
    if (i > 0 && banned[i] <= banned[i - 1]) return RowError(index, "bans are out of order");
  }
  return absl::OkStatus();
}

void StepRules::Advance(const StepInput& input) {
  for (const StepRow& row : input.rows) {
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    slot.sequence.next_position = row.end();
    if (row.output == RowOutput::kLast) slot.has_sampled = true;
  }
}

}  // namespace aft
