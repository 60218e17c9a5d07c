#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/api/model_runner.h"
#include "model/gpu/gpu_step.h"
#include "model/runtime/step_rules.h"

namespace aft {

// Which slots' look-ahead sums (kernels::cuda::AftLookahead) are good for how long. The host knows
// all of it: sums are made at one position and serve the `rows` positions from there on.
class LookaheadAges {
 public:
  LookaheadAges(int32_t slots, int64_t rows)
      : rows_(rows), made_at_(static_cast<size_t>(slots), -1) {}

  // The age (StepRows::age) of a single token at `position`, which the caller is about to queue.
  int32_t Step(int32_t slot, int64_t position);
  // The slot's state changes by other means.
  void Forget(int32_t slot) { made_at_[static_cast<size_t>(slot)] = -1; }

 private:
  const int64_t rows_;            // 0: there is no look-ahead
  std::vector<int64_t> made_at_;  // of each slot; -1: no sums
};

// One step on the host's side: its rows as a device takes them, single tokens first, and what
// becomes of the device's answer. Reused from step to step without allocating, but for the result.
class GpuStepPlan {
 public:
  // Where the arrays lie. REQUIRES: StepRules::Check.
  void Measure(const StepInput& input);
  // Adds padding: rows, tokens and outputs of no slot. REQUIRES: Measure; `shape` takes the step
  // (GpuStepShapes).
  void Pad(const GpuStepShape& shape);

  const GpuStepShape& shape() const { return shape_; }
  int64_t longest() const { return longest_; }  // tokens of the longest chunk, or more

  // After Fill. Some tokens are not what their slot has sampled last, which Sample has counted.
  bool marks_seen() const { return marks_seen_; }
  bool wants_top() const { return wants_top_; }  // some alternatives are to be reported
  // Of the step's outputs, the first ones among which are all whose hidden vectors are wanted.
  int64_t hidden_outputs() const { return hidden_outputs_; }

  // Writes the arrays to `block`, and counts what the sequences will have sampled.
  void Fill(const StepInput& input, StepRules* sequences, LookaheadAges* ages, void* block);

  // Into `output`, whose memory it uses: what the device wrote to `block`, and of `hidden`, the
  // vectors of hidden_outputs(), dense; in the order of the rows of the input that was given to
  // Fill. `sequences` learn what they sampled.
  void Read(void* block, const at::Tensor& hidden, StepRules* sequences, StepOutput& output);

 private:
  // One output that somebody waits for.
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
  std::vector<Hidden> hidden_;  // of each row of result_.hidden
  StepOutput result_;
};

// Alternatives that a device reports for these parameters: at most kMaxTopLogprobs.
int32_t DeviceTopLogprobs(const SamplingParams& params);

}  // namespace aft
