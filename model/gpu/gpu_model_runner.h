#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/model_runner.h"
#include "model/gpu/gpu_network.h"
#include "model/gpu/gpu_queue.h"
#include "model/gpu/gpu_step.h"
#include "model/gpu/gpu_step_plan.h"
#include "model/gpu/gpu_step_shapes.h"
#include "model/kernels/cuda/sampler/sampler.h"
#include "model/runtime/step_rules.h"
#include "model/state/state_pool.h"

namespace aft {

// Runs a language model on a GPU. Submit queues a step and returns. A step is one copy of its
// arrays to the device, one launch of a recorded graph, one copy of the sampled tokens back, and
// one of the hidden vectors that its rows ask for. Two steps may be in flight: the device begins
// the second while the host reads the first. Logits stay on the device.
//
// Steps are padded to the next of GpuStepShapes, so that few graphs serve nearly all of them. The
// others (long texts to score) are queued operator by operator. A sequence's tokens depend on its
// neighbours only by rounding, as far as LibTorch's matrix products depend on the number of rows.
//
// A sequence has at most kernels::cuda::kMaxSequenceTokens tokens (ModelInfo::max_seq_len).
//
// Create allocates everything except the states that KeepSlot keeps, and leaves memory for those.
// If the device fails later, the step returns INTERNAL, or UNAVAILABLE when the device is lost, and
// every later step does too, and KeepSlot and the snapshots of kept states fail.
class GpuModelRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t slots = 64;             // >= 1
    int64_t max_step_tokens = 256;  // >= slots
    int64_t kept_bytes = 0;         // of the device's memory, for states that KeepSlot keeps
    bool graphs = true;  // false: tests compare with steps that are queued operator by operator
  };

  // Allocates, warms up and records the graphs. `network` was made for `queue` and for the limits()
  // of GpuStepShapes for these slots and tokens. RESOURCE_EXHAUSTED lists the memory that each part
  // needs. INVALID_ARGUMENT: more slots than kernels::cuda::kMaxRows.
  static absl::StatusOr<std::unique_ptr<GpuModelRunner>> Create(std::unique_ptr<GpuQueue> queue,
                                                                std::unique_ptr<GpuNetwork> network,
                                                                const Options& options);
  ~GpuModelRunner() override;  // waits for the device

  const ModelInfo& info() const override { return info_; }
  const DeviceStats* device_stats() const override { return &stats_; }
  int32_t slots() const override { return options_.slots; }
  int64_t max_step_tokens() const override { return options_.max_step_tokens; }
  void PrepareThread() override;
  absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                   const SlotTerms& terms) override;
  absl::StatusOr<std::shared_ptr<const KeptState>> KeepSlot(int32_t slot, KeptIn memory) override;
  int max_steps_in_flight() const override { return kFlights; }
  absl::StatusOr<Ticket> Submit(const StepInput& input) override;
  absl::Status Collect(Ticket ticket, StepOutput& output) override;

 private:
  static constexpr int kFlights = 2;

  // A step between Submit and Collect.
  struct Flight {
    GpuStepPlan plan;
    at::Tensor input;   // pinned, GpuStepInput
    at::Tensor output;  // pinned, GpuStepOutput
    at::Tensor hidden;  // pinned, GpuNetwork::hidden of the outputs
    std::unique_ptr<GpuEvent> begin;
    std::unique_ptr<GpuEvent> end;
    GpuGraph* recorded = nullptr;  // null: queued operator by operator
  };

  GpuModelRunner(std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network,
                 const Options& options);

  // The sizes of what Allocate makes.
  GpuStepShape LargestShape() const;
  int64_t HiddenBytes(int64_t outputs) const;

  absl::Status CheckMemory() const;
  absl::Status Allocate();
  absl::Status WarmUp();
  absl::Status RunOnce(const StepInput& input);
  absl::Status RunChunks(int64_t tokens, int64_t length);
  // Runs a step of padding only, operator by operator. REQUIRES: no step is in flight.
  absl::Status RunPadding(const GpuStepShape& shape);
  absl::Status Record(size_t index);

  // These queue work; they are called inside GpuQueue::Run.
  absl::Status Enqueue(const StepInput& input, Flight* flight);
  // If the device does not have them yet, sends the slot's sampling parameters and clears its
  // counts. Tokens that the row bans (StepRow::banned) are sent as rules in addition to the slot's
  // own, which are sent again once the row bans none.
  absl::Status SendTerms(int32_t slot, absl::Span<const TokenId> banned = {});
  absl::Status Compute(const GpuStepShape& shape, int64_t longest);

  // These wait for the device.
  absl::Status SendCounts(int32_t slot, const SlotTerms& terms);
  void ReadMemory();
  at::Tensor HiddenOf(const Flight& flight) const;  // [outputs, d] fp32, dense; or undefined
  kernels::cuda::SamplerSlots sampler_slots() const;

  const Options options_;
  const std::unique_ptr<GpuQueue> queue_;
  const std::unique_ptr<GpuNetwork> network_;
  ModelInfo info_;
  DeviceStats stats_;
  StepRules sequences_;
  LookaheadAges ages_;
  const GpuStepShapes shapes_;
  std::vector<std::unique_ptr<GpuGraph>> graphs_;  // one per shape; null: Options::graphs is off
  std::vector<char> has_terms_;  // per slot: whether the device has the terms of its sequence
  std::vector<char> has_bans_;   // per slot: whether its rules on the device include a row's bans

  // These are on the device.
  StatePool states_;
  at::Tensor params_;        // [slots] SlotSampling
  at::Tensor rules_;         // [slots, kMaxLogitRules] LogitRule
  at::Tensor counts_;        // [slots, vocab_size]
  at::Tensor last_sampled_;  // [slots]
  at::Tensor input_;         // GpuStepInput
  at::Tensor output_;        // GpuStepOutput

  at::Tensor host_params_;  // pinned copy of params_
  at::Tensor host_rules_;   // pinned copy of rules_
  std::array<Flight, kFlights> flights_;
  Ticket submitted_ = 0;
  Ticket collected_ = 0;
};

}  // namespace aft
