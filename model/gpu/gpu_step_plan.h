#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/api/model_runner.h"
#include "model/gpu/gpu_step.h"
#include "model/runtime/step_rules.h"

namespace aft {

// Tracks how long the look-ahead sums of each slot (kernels::cuda::AftLookahead) are valid. The
// host knows this: sums are made at one position and serve the `rows` positions from there on.
class LookaheadAges {
 public:
  LookaheadAges(int32_t slots, int64_t rows)
      : rows_(rows), made_at_(static_cast<size_t>(slots), -1) {}

  // The age (StepRows::age) of a single token at `position`, which the caller is about to queue.
  int32_t Step(int32_t slot, int64_t position);
  // Must be called when the slot's state changes by other means.
  void Forget(int32_t slot) { made_at_[static_cast<size_t>(slot)] = -1; }

 private:
  const int64_t rows_;            // 0: there is no look-ahead
  std::vector<int64_t> made_at_;  // per slot; -1: no sums
};

// One step on the host's side: its rows in the form that a device reads, single tokens first, and
// where the device's results go. It is reused from step to step and allocates only the result.
class GpuStepPlan {
 public:
  // Computes where the arrays are. REQUIRES: StepRules::Check.
  void Measure(const StepInput& input);
  // Adds padding: rows, tokens and outputs without a slot. REQUIRES: Measure; the step fits into
  // `shape` (GpuStepShapes).
  void Pad(const GpuStepShape& shape);

  const GpuStepShape& shape() const { return shape_; }
  int64_t longest() const { return longest_; }  // tokens of the longest chunk, or more

  // Says, after Fill, whether a token is not its slot's last sample, which Sample has counted.
  bool marks_seen() const { return marks_seen_; }
  bool wants_top() const { return wants_top_; }  // some row asks for alternatives
  // The number of first outputs that include all whose hidden vectors are wanted.
  int64_t hidden_outputs() const { return hidden_outputs_; }

  // Writes the arrays to `block`, and counts the tokens that the sequences will sample.
  void Fill(const StepInput& input, StepRules* sequences, LookaheadAges* ages, void* block);

  // Writes results into `output`, whose memory it reuses, in the order of the rows that were given
  // to Fill. They come from `block`, which the device wrote, and from `hidden`, the dense vectors
  // of hidden_outputs(). The sampled tokens are recorded in `sequences`.
  void Read(void* block, const at::Tensor& hidden, StepRules* sequences, StepOutput& output);

 private:
  // One output that the caller wants.
  struct Wanted {
    int64_t output;
    int32_t slot;
    TokenId target;       // kNoToken: sampled
    int32_t top;          // alternatives; -1: not even the log-probability
    SampledToken* token;  // in result_
  };

  // Outputs of one row whose hidden vectors are wanted.
  struct Hidden {
    int64_t first;
    int64_t count;
  };

  void FillPadding(int64_t decode, int64_t chunks, int64_t chunk_tokens, GpuStepInput* in) const;
  void MakeRoom(const StepInput& input);

  GpuStepShape shape_;
  int64_t longest_ = 0;
  bool marks_seen_ = false;
  bool wants_top_ = false;
  int64_t hidden_outputs_ = 0;
  std::vector<Wanted> wanted_;
  std::vector<Hidden> hidden_;  // one per row of result_.hidden
  StepOutput result_;
};

// The number of alternatives that a device reports for these parameters: at most kMaxTopLogprobs.
int32_t DeviceTopLogprobs(const SamplingParams& params);

}  // namespace aft
