#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/api/model_runner.h"
#include "model/network/cpu_network.h"
#include "model/runtime/parallel.h"
#include "model/runtime/step_rules.h"
#include "model/runtime/step_threads.h"
#include "model/sampling/sampler.h"
#include "model/state/state_pool.h"

namespace aft {

// Runs a language model on the CPU, inside Submit. A sequence's logits, and so its tokens and
// scores, have the same bits however its prompt is cut into chunks, whatever else is in the batch
// and however many threads work. Steady decoding allocates nothing; a slot's token counts are
// allocated for its first sequence with penalties.
class CpuModelRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t slots = 64;             // >= 1
    int64_t max_step_tokens = 256;  // >= slots
    int threads = 1;                // >= 1
    std::vector<int> cpus{};        // see ParallelExecutor
    // Measure at load how many of the threads compute steps of few tokens fastest (StepThreads).
    bool measure_threads = false;
  };

  // A longer step runs in parts of this number of tokens, each through all layers. With more tokens
  // at once the matrices between the products no longer fit into the caches.
  static constexpr int64_t kTokensAtOnce = 1024;
  static int64_t TokensAtOnce(const Options& options) {
    return std::min(options.max_step_tokens, kTokensAtOnce);
  }

  // The memory of a slot: its states, and the counts of its tokens, which are allocated when a
  // sequence with penalties first has the slot.
  static int64_t SlotBytes(const std::vector<StateSpec>& states, int64_t vocab_size) {
    return StatePool::SlotBytes(states) + StatePool::ScratchBytes(states) +
           vocab_size * static_cast<int64_t>(sizeof(TokenCount));
  }

  // Allocates states and workspace and warms them up. RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<CpuModelRunner>> Create(std::unique_ptr<CpuNetwork> network,
                                                                const Options& options);

  const ModelInfo& info() const override { return info_; }
  int32_t slots() const override { return states_.slots(); }
  int64_t max_step_tokens() const override { return options_.max_step_tokens; }
  void PrepareThread() override { executor_.PlaceCaller(); }
  absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                   const SlotTerms& terms) override;
  absl::StatusOr<std::shared_ptr<const KeptState>> KeepSlot(int32_t slot, KeptIn memory) override;
  absl::StatusOr<Ticket> Submit(const StepInput& input) override;
  absl::Status Collect(Ticket ticket, StepOutput& output) override;

 private:
  // One position whose logits or hidden vector are wanted.
  struct Wanted {
    SequenceRecord* sequence = nullptr;
    TokenCount* counts = nullptr;  // [vocab_size]; null: the sequence has no penalties
    TokenId target = kNoToken;     // kNoToken: sample
    SampledToken* token = nullptr;
    absl::Span<const TokenId> banned{};  // of the step's row
    float* hidden = nullptr;             // [d_model], or null; if set, all other members are unset
  };

  CpuModelRunner(std::unique_ptr<CpuNetwork> network, const Options& options);

  // Fills the arrays below from the step's rows, and makes room in output_.
  void Flatten(const StepInput& input);
  // Runs the step that Flatten has prepared.
  absl::Status Forward();
  // Fills in what is wanted of `wanted` positions, beginning at wanted_[first_wanted]. They are all
  // outputs of the last ForwardStep.
  absl::Status Report(size_t first_wanted, int64_t wanted);
  void ReportOne(const float* logits, const Wanted& wanted, Sampler* sampler) const;
  absl::Status WarmUp();
  // Runs a step of one token in each of the first `rows` slots.
  absl::Status DecodeZeros(int64_t rows);

  const Options options_;
  ParallelExecutor executor_;
  StepThreads threads_;
  const std::unique_ptr<CpuNetwork> network_;
  ModelInfo info_;
  StatePool states_;
  std::vector<Sampler> samplers_;  // one per thread
  StepRules sequences_;
  // [slots, vocab_size] where the sequence has penalties, else [slots, 0].
  std::vector<std::vector<TokenCount>> counts_;

  // One step, as arrays; see CpuNetwork::Batch.
  std::vector<int32_t> row_slots_;
  std::vector<int64_t> row_positions_;
  std::vector<int64_t> row_offsets_;
  std::vector<uint8_t> row_generated_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> outputs_;
  std::vector<Wanted> wanted_;  // of each output

  // The rows of one part of the step (kTokensAtOnce).
  std::vector<int32_t> part_slots_;
  std::vector<int64_t> part_positions_;
  std::vector<int64_t> part_offsets_;
  std::vector<uint8_t> part_generated_;
  std::vector<int64_t> part_outputs_;

  Ticket step_ = 0;  // the last step that was submitted
  bool collected_ = true;
  StepOutput output_;  // of that step
};

}  // namespace aft
