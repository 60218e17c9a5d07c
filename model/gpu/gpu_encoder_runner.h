#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "model/gpu/gpu_network.h"
#include "model/gpu/gpu_queue.h"
#include "model/runtime/text_rules.h"

namespace aft {

// Runs an encoder or a bare mixer on a GPU. The sequences of a call that can run together
// (PassesOf) do so, one after the other without padding. Create allocates everything except the
// vectors that are returned. If the device fails later, the call returns INTERNAL, or UNAVAILABLE
// when the device is lost, and every later call does too.
class GpuEncoderRunner final : public EncoderRunner {
 public:
  struct Options {
    int64_t max_batch_rows = 32;      // >= 1
    int64_t max_batch_tokens = 4096;  // >= max_batch_rows
  };

  // Allocates and warms up. `network` was made for `queue` and for batches of this size.
  // RESOURCE_EXHAUSTED lists the memory that each part needs. INVALID_ARGUMENT: more rows than
  // kernels::cuda::kMaxRows.
  static absl::StatusOr<std::unique_ptr<GpuEncoderRunner>> Create(
      std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network, const Options& options);
  ~GpuEncoderRunner() override;  // waits for the device

  const ModelInfo& info() const override { return info_; }
  const DeviceStats* device_stats() const override { return &stats_; }
  void PrepareThread() override;
  int64_t input_width() const override { return limits_.width; }
  int64_t width() const override { return width_; }
  int64_t max_batch_rows() const override { return limits_.max_batch_rows; }
  int64_t max_batch_tokens() const override { return limits_.max_batch_tokens; }

  // A sequence's vectors depend on the other sequences only by rounding, as far as LibTorch's
  // matrix products depend on the number of tokens.
  absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<EncoderInput>& sequences) override;

 private:
  // The arrays of a batch, one after the other in one block.
  struct Input;

  GpuEncoderRunner(std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network,
                   const Options& options);

  absl::Status Allocate();
  absl::Status WarmUp();
  // The most tokens that a batch can have.
  int64_t MostTokens() const;
  absl::Status EncodeZeros(int64_t tokens);
  // Queues the copy of Encode's results for `tokens` tokens to host_vectors_.
  absl::Status CopyVectors(int64_t tokens);
  // Queues a pass of a call. Its vectors are in host_vectors_ when `end_` has been reached.
  absl::Status Compute(const EncoderPass& pass, const std::vector<EncoderInput>& sequences);

  const TextLimits limits_;
  const int64_t width_;
  const std::unique_ptr<GpuQueue> queue_;
  const std::unique_ptr<GpuNetwork> network_;
  ModelInfo info_;
  DeviceStats stats_;
  at::Tensor input_;         // on the device
  at::Tensor host_input_;    // pinned
  at::Tensor host_vectors_;  // pinned, [max_batch_tokens, width()]: results of Encode
  std::unique_ptr<GpuEvent> begin_;
  std::unique_ptr<GpuEvent> end_;
};

}  // namespace aft
