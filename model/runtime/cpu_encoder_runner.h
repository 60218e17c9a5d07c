#ifndef AFT_MODEL_RUNTIME_CPU_ENCODER_RUNNER_H_
#define AFT_MODEL_RUNTIME_CPU_ENCODER_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "model/network/encoder.h"
#include "model/runtime/parallel.h"
#include "model/runtime/text_rules.h"

namespace aft {

// Runs an encoder on the CPU. All texts of a call go through every layer together, laid one after
// the other without padding. Steady state allocates nothing but the vectors that it returns.
class CpuEncoderRunner final : public EncoderRunner {
 public:
  struct Options {
    int64_t max_batch_rows = 32;      // >= 1
    int64_t max_batch_tokens = 4096;  // >= max_batch_rows
    int threads = 1;                  // >= 1
  };

  // Allocates the workspace and warms it up. RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<CpuEncoderRunner>> Create(std::unique_ptr<Encoder> encoder,
                                                                  const Options& options);

  // Bytes that Create will allocate beside the encoder's.
  static int64_t WorkspaceBytes(const Encoder& encoder, const Options& options);

  const ModelInfo& info() const override { return info_; }
  int64_t width() const override { return encoder_->config().d_model; }
  int64_t max_batch_rows() const override { return limits_.max_batch_rows; }
  int64_t max_batch_tokens() const override { return limits_.max_batch_tokens; }
  absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<std::vector<TokenId>>& sequences) override;

 private:
  CpuEncoderRunner(std::unique_ptr<Encoder> encoder, const Options& options);

  const TextLimits limits_;
  const ParallelExecutor executor_;
  const std::unique_ptr<Encoder> encoder_;
  ModelInfo info_;
  std::optional<Activations> workspace_;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> tokens_;
};

}  // namespace aft

#endif  // AFT_MODEL_RUNTIME_CPU_ENCODER_RUNNER_H_
