#include "model/gpu/gpu_encoder.h"

#include <utility>

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/gpu_trunk.h"

namespace aft {

namespace cuda = kernels::cuda;

class GpuEncoder::Impl {
 public:
  Impl(const NetworkConfig& config, Number format, const GpuLimits& limits, GpuQueue* queue)
      : config_(config), limits_(limits), queue_(queue), trunk_(config, format, limits, queue) {}

  absl::Status Load(const TensorMap& tensors) {
    std::vector<GpuNeed> needs = trunk_.Needs();
    needs.push_back({absl::StrCat("vectors of ", limits_.tokens, " tokens"),
                     limits_.tokens * config_.d_model * int64_t{sizeof(float)}});
    AFT_RETURN_IF_ERROR(CheckFits(needs, *queue_));
    AFT_RETURN_IF_ERROR(trunk_.Load(tensors));
    const at::Device device = queue_->device();
    no_slots_ = at::zeros({limits_.tokens}, at::TensorOptions(device).dtype(at::kInt));
    vectors_ = DeviceBuffer(limits_.tokens * config_.d_model, Number::kFp32, device);
    return absl::OkStatus();
  }

  absl::Status Forward(const GpuEncoderBatch& batch) {
    const int64_t count = batch.texts.tokens;
    AFT_CHECK(batch.texts.sequences <= limits_.rows);
    if (count == 0) return absl::OkStatus();
    AFT_RETURN_IF_ERROR(trunk_.Embed(batch.tokens, no_slots_.const_data_ptr<int32_t>(),
                                     batch.token_positions, nullptr, count));
    for (size_t i = 0; i < trunk_.layers().size(); ++i) {
      AFT_RETURN_IF_ERROR(trunk_.Pack(i, count));
      AFT_RETURN_IF_ERROR(trunk_.layers()[i].mixer->Encode(
          batch.texts, trunk_.packed(0), trunk_.mixed(0), trunk_.workspace(), queue_->stream()));
      AFT_RETURN_IF_ERROR(trunk_.Finish(i, count));
    }
    return trunk_.FinalNorm(count, vectors_.Out(config_.d_model));
  }

  const NetworkConfig& config() const { return config_; }
  GpuQueue& queue() const { return *queue_; }
  int64_t weight_bytes() const { return trunk_.weight_bytes(); }
  int64_t workspace_bytes() const {
    return trunk_.workspace_bytes() + vectors_.bytes() + DeviceBytes(no_slots_);
  }
  const float* vectors() const {
    return static_cast<const float*>(vectors_.In(config_.d_model).data);
  }

 private:
  const NetworkConfig config_;
  const GpuLimits limits_;
  GpuQueue* const queue_;
  GpuTrunk trunk_;
  at::Tensor no_slots_;  // texts have none; Embed takes a slot below 0 for padding
  DeviceBuffer vectors_;
};

absl::StatusOr<std::unique_ptr<GpuEncoder>> GpuEncoder::Create(const NetworkConfig& config,
                                                               const TensorMap& tensors,
                                                               Number format,
                                                               const GpuLimits& limits,
                                                               GpuQueue* queue) {
  AFT_CHECK(limits.rows >= 1 && limits.tokens >= limits.rows);
  AFT_RETURN_IF_ERROR(CheckTensors(config, tensors));
  auto impl = std::make_unique<Impl>(config, format, limits, queue);
  AFT_RETURN_IF_ERROR(queue->Run([&] { return impl->Load(tensors); }));
  return std::unique_ptr<GpuEncoder>(new GpuEncoder(std::move(impl)));
}

GpuEncoder::GpuEncoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuEncoder::~GpuEncoder() = default;

const NetworkConfig& GpuEncoder::config() const { return impl_->config(); }
int64_t GpuEncoder::weight_bytes() const { return impl_->weight_bytes(); }
int64_t GpuEncoder::workspace_bytes() const { return impl_->workspace_bytes(); }

absl::StatusOr<const float*> GpuEncoder::Forward(const GpuEncoderBatch& batch) {
  AFT_RETURN_IF_ERROR(impl_->queue().Run([&] { return impl_->Forward(batch); }));
  return impl_->vectors();
}

}  // namespace aft
