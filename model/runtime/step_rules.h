#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"

namespace aft {

// The host's record of a sequence, without its state.
struct SequenceRecord {
  SamplingParams params;
  int64_t next_position = 0;  // tokens consumed
  uint64_t sampled = 0;       // index of the next output token
  // The prompt is over: what the sequence consumes from now on is RaggedBatch::generated.
  bool generates() const { return sampled > 0; }
  // The token that kLastSampled stands for; kNoToken when there is none yet.
  TokenId last_sampled = kNoToken;
};

// The sequences in a runner's slots, as the host knows them, and the rules that model_runner.h sets
// for steps over them. They are the same for every device. Thread-compatible. After construction it
// allocates only the text of errors.
class StepRules {
 public:
  struct Limits {
    int32_t slots = 0;
    int64_t max_step_tokens = 0;
    int64_t vocab_size = 0;
    int64_t max_seq_len = 0;  // 0: unlimited
  };

  explicit StepRules(const Limits& limits);

  const Limits& limits() const { return limits_; }
  int32_t slots() const { return static_cast<int32_t>(slots_.size()); }

  // REQUIRES: 0 <= slot < slots().
  SequenceRecord& sequence(int32_t slot);
  const SequenceRecord& sequence(int32_t slot) const;

  // Gives the slot to a sequence that has consumed `position` tokens.
  void Bind(int32_t slot, int64_t position, const SlotTerms& terms);

  // INVALID_ARGUMENT names the first row that breaks a rule, and the rule.
  absl::Status Check(const StepInput& input);

  // Moves the positions of the sequences to the end of a submitted step. The caller itself counts
  // output tokens (SequenceRecord::sampled). REQUIRES: Check has accepted `input`.
  void Advance(const StepInput& input);

 private:
  struct Slot {
    SequenceRecord sequence;
    uint64_t named_by = 0;     // the last Check (checks_) whose step named the slot
    bool has_sampled = false;  // kLastSampled is allowed
  };

  absl::Status CheckRow(const StepRow& row, int64_t index);
  absl::Status CheckTokens(const StepRow& row, int64_t index) const;
  absl::Status CheckBanned(const StepRow& row, int64_t index) const;

  const Limits limits_;
  std::vector<Slot> slots_;
  uint64_t checks_ = 0;
};

}  // namespace aft
