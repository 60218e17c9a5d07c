#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "model/network/cpu_network.h"
#include "model/runtime/parallel.h"
#include "model/runtime/step_threads.h"
#include "model/runtime/text_rules.h"

namespace aft {

// Runs an encoder or a bare mixer on the CPU. Sequences of a call that have the same form
// (PassesOf) go through every layer together, one after the other without padding.
class CpuEncoderRunner final : public EncoderRunner {
 public:
  struct Options {
    int64_t max_batch_rows = 32;      // >= 1
    int64_t max_batch_tokens = 4096;  // >= max_batch_rows
    int threads = 1;                  // >= 1
    std::vector<int> cpus{};          // see ParallelExecutor
    // Measure at load how many of the threads compute few tokens fastest (StepThreads).
    bool measure_threads = false;
  };

  // Allocates the workspace and warms it up. RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<CpuEncoderRunner>> Create(
      std::unique_ptr<CpuNetwork> network, const Options& options);

  const ModelInfo& info() const override { return info_; }
  void PrepareThread() override { executor_.PlaceCaller(); }
  int64_t input_width() const override { return limits_.width; }
  int64_t width() const override { return width_; }
  int64_t max_batch_rows() const override { return limits_.max_batch_rows; }
  int64_t max_batch_tokens() const override { return limits_.max_batch_tokens; }
  absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<EncoderInput>& sequences) override;

 private:
  CpuEncoderRunner(std::unique_ptr<CpuNetwork> network, const Options& options);

  // Appends the results of the tokens [first, end) of the last ForwardTexts: vectors or logits.
  absl::Status Append(int64_t first, int64_t end, TokenVectors& vectors);
  absl::Status Run(const EncoderPass& pass, const std::vector<EncoderInput>& sequences,
                   std::vector<TokenVectors>& vectors);

  const TextLimits limits_;
  const int64_t width_;
  ParallelExecutor executor_;
  StepThreads threads_;
  const std::unique_ptr<CpuNetwork> network_;
  ModelInfo info_;
  // The arrays of the current pass; see CpuNetwork::Texts.
  std::vector<int64_t> offsets_;
  std::vector<int32_t> tokens_;
  std::vector<const float*> inputs_;
  std::vector<int64_t> key_offsets_;
  std::vector<const float*> keys_;
  std::vector<const float*> values_;
  std::vector<const float*> pairs_;
  std::vector<float> mask_;
};

}  // namespace aft
