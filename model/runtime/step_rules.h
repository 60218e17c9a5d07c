#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "model/runtime/snapshot.h"
#include "model/state/slot_layout.h"

namespace aft {

// The sequences in a runner's slots, as the host knows them, and the rules that model_runner.h sets
// for steps over them: the same for every device. Thread-compatible; allocates nothing after its
// construction but the text of errors.
class StepRules {
 public:
  struct Limits {
    int32_t slots = 0;
    int64_t max_step_tokens = 0;
    int64_t vocab_size = 0;
    int64_t max_seq_len = 0;  // 0: unlimited
  };

  explicit StepRules(const Limits& limits);

  int32_t slots() const { return static_cast<int32_t>(slots_.size()); }

  // REQUIRES: 0 <= slot < slots().
  SequenceRecord& sequence(int32_t slot);
  const SequenceRecord& sequence(int32_t slot) const;

  void Bind(int32_t slot, const SamplingParams& params);
  void Fork(int32_t from, int32_t to);  // REQUIRES: from != to
  // ModelRunner::ContinueSlot.
  void Continue(int32_t slot, const SamplingParams& params, uint64_t output_index);
  // Makes `params` those of the opened sequence; without penalties its counts are left out.
  // INVALID_ARGUMENT: there are no counts for the penalties.
  absl::Status SampleWith(const SamplingParams& params, OpenedSnapshot& opened) const;
  // The same. INVALID_ARGUMENT also: the snapshot does not fit the model, whose slots are laid out
  // so.
  absl::Status CheckRestored(OpenedSnapshot& opened, const SlotLayout& layout,
                             const SamplingParams& params) const;
  void Restore(int32_t slot, const SequenceRecord& record);

  // INVALID_ARGUMENT names the first row that breaks a rule, and the rule.
  absl::Status Check(const StepInput& input);

  // The step was submitted: positions move on. Indexes of output tokens (SequenceRecord::sampled)
  // are the caller's to count. REQUIRES: Check.
  void Advance(const StepInput& input);

 private:
  struct Slot {
    SequenceRecord sequence;
    uint64_t named_by = 0;     // Check that named the slot last
    bool has_sampled = false;  // kLastSampled means something
  };

  absl::Status CheckRow(const StepRow& row, int64_t index);
  absl::Status CheckTokens(const StepRow& row, int64_t index) const;

  const Limits limits_;
  std::vector<Slot> slots_;
  uint64_t checks_ = 0;
};

}  // namespace aft
