#include "model/gpu/gpu_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/gpu_linear.h"
#include "model/gpu/gpu_trunk.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// Logits are computed for this many tokens at a time, or for all rows of a decode step: enough for
// the head's weights to be read few times, few enough that a long text to score needs little
// memory.
constexpr int64_t kLogitRows = 256;

}  // namespace

class GpuDecoder::Impl {
 public:
  Impl(const NetworkConfig& config, Number format, const GpuLimits& limits, GpuQueue* queue)
      : config_(config),
        limits_(limits),
        max_logit_rows_(std::min(limits.tokens, std::max(limits.rows, kLogitRows))),
        queue_(queue),
        trunk_(config, format, limits, queue) {}

  absl::Status Load(const TensorMap& tensors) {
    fingerprint_ = NetworkFingerprint(config_, tensors);
    std::vector<GpuNeed> needs = trunk_.Needs();
    needs.push_back({absl::StrCat("logits of ", max_logit_rows_, " tokens"),
                     max_logit_rows_ * config_.vocab_size * int64_t{sizeof(float)}});
    AFT_RETURN_IF_ERROR(CheckFits(needs, *queue_));
    AFT_RETURN_IF_ERROR(trunk_.Load(tensors));
    AFT_RETURN_IF_ERROR(LoadHead(tensors));
    logits_ = DeviceBuffer(max_logit_rows_ * config_.vocab_size, Number::kFp32, queue_->device());
    return absl::OkStatus();
  }

  absl::Status Forward(const GpuDecoderBatch& batch, const std::vector<cuda::State>& states,
                       float* lookahead, int32_t slots) {
    const std::vector<GpuLayer>& layers = trunk_.layers();
    AFT_CHECK(states.size() == layers.size());
    AFT_CHECK(batch.decode.rows + batch.chunks.rows <= limits_.rows);
    int64_t count = batch.decode.rows + batch.chunks.tokens;
    output_count_ = 0;
    if (count == 0) return absl::OkStatus();
    AFT_RETURN_IF_ERROR(trunk_.Embed(batch.tokens, batch.token_slots, batch.token_positions,
                                     batch.last_sampled, count));
    for (size_t i = 0; i < layers.size(); ++i) {
      AFT_RETURN_IF_ERROR(trunk_.Pack(i, count));
      const int64_t ahead = static_cast<int64_t>(i) * slots * lookahead_floats();
      AFT_RETURN_IF_ERROR(Mix(*layers[i].mixer, batch, states[i],
                              lookahead == nullptr ? nullptr : lookahead + ahead));
      if (i + 1 == layers.size()) {
        // All states are advanced: from here on only tokens whose logits are wanted matter.
        count = batch.output_count;
        if (count == 0) return absl::OkStatus();
        if (batch.outputs != nullptr) AFT_RETURN_IF_ERROR(trunk_.Keep(batch.outputs, count));
      }
      AFT_RETURN_IF_ERROR(trunk_.Finish(i, count));
    }
    AFT_RETURN_IF_ERROR(trunk_.FinalNorm(count, trunk_.normed()));
    output_count_ = count;
    return absl::OkStatus();
  }

  const float* Logits(int64_t first, int64_t count) {
    AFT_CHECK(first >= 0 && count <= max_logit_rows_ && first + count <= output_count_);
    head_.Forward(trunk_.NormedFor(head_, first, count),
                  logits_.Rows(0, count, config_.vocab_size));
    return static_cast<const float*>(logits_.In(config_.vocab_size).data);
  }

  const NetworkConfig& config() const { return config_; }
  uint64_t fingerprint() const { return fingerprint_; }
  GpuQueue& queue() const { return *queue_; }
  int64_t weight_bytes() const { return trunk_.weight_bytes() + own_head_bytes_; }
  int64_t workspace_bytes() const { return trunk_.workspace_bytes() + logits_.bytes(); }
  int64_t max_logit_rows() const { return max_logit_rows_; }
  const std::vector<GpuLayer>& layers() const { return trunk_.layers(); }
  int64_t lookahead_floats() const { return layers().front().mixer->lookahead_floats(); }

 private:
  absl::Status LoadHead(const TensorMap& tensors) {
    if (config_.tie_embeddings && !config_.head_bias) {
      head_ = GpuLinear(trunk_.embedding());
      return absl::OkStatus();
    }
    const char* const name = config_.tie_embeddings ? "embed.weight" : "head.weight";
    AFT_ASSIGN_OR_RETURN(
        head_, GpuLinear::Create(name, tensors.at(name),
                                 config_.head_bias ? tensors.at("head.bias") : at::Tensor(),
                                 trunk_.number(), queue_->device()));
    own_head_bytes_ = head_.weight_bytes();
    return absl::OkStatus();
  }

  absl::Status Mix(const GpuMixer& mixer, const GpuDecoderBatch& batch, cuda::State state,
                   float* lookahead) {
    const int64_t decoded = batch.decode.rows;
    if (decoded > 0) {
      AFT_RETURN_IF_ERROR(mixer.Step(batch.decode, trunk_.packed(0), state, lookahead,
                                     trunk_.mixed(0), trunk_.workspace(), queue_->stream()));
    }
    if (batch.chunks.rows == 0) return absl::OkStatus();
    return mixer.Prefill(batch.chunks, trunk_.packed(decoded), state, trunk_.mixed(decoded),
                         trunk_.workspace(), queue_->stream());
  }

  const NetworkConfig config_;
  const GpuLimits limits_;
  const int64_t max_logit_rows_;
  GpuQueue* const queue_;
  uint64_t fingerprint_ = 0;
  GpuTrunk trunk_;
  GpuLinear head_;
  int64_t own_head_bytes_ = 0;  // 0 when the embedding's tensor serves
  DeviceBuffer logits_;
  int64_t output_count_ = 0;  // of the last Forward
};

absl::StatusOr<std::unique_ptr<GpuDecoder>> GpuDecoder::Create(const NetworkConfig& config,
                                                               const TensorMap& tensors,
                                                               Number format,
                                                               const GpuLimits& limits,
                                                               GpuQueue* queue) {
  AFT_CHECK(limits.rows >= 1 && limits.tokens >= limits.rows);
  AFT_RETURN_IF_ERROR(CheckTensors(config, tensors));
  auto impl = std::make_unique<Impl>(config, format, limits, queue);
  AFT_RETURN_IF_ERROR(queue->Run([&] { return impl->Load(tensors); }));
  return std::unique_ptr<GpuDecoder>(new GpuDecoder(std::move(impl)));
}

GpuDecoder::GpuDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuDecoder::~GpuDecoder() = default;

const NetworkConfig& GpuDecoder::config() const { return impl_->config(); }
uint64_t GpuDecoder::fingerprint() const { return impl_->fingerprint(); }
int64_t GpuDecoder::weight_bytes() const { return impl_->weight_bytes(); }
int64_t GpuDecoder::workspace_bytes() const { return impl_->workspace_bytes(); }
int64_t GpuDecoder::max_logit_rows() const { return impl_->max_logit_rows(); }
int64_t GpuDecoder::lookahead_floats() const { return impl_->lookahead_floats(); }
int64_t GpuDecoder::lookahead_rows() const {
  return impl_->layers().front().mixer->lookahead_rows();
}

std::vector<StateSpec> GpuDecoder::state_specs() const {
  std::vector<StateSpec> specs;
  for (const GpuLayer& layer : impl_->layers()) specs.push_back(layer.mixer->state_spec());
  return specs;
}

absl::Status GpuDecoder::Forward(const GpuDecoderBatch& batch,
                                 const std::vector<cuda::State>& layers, float* lookahead,
                                 int32_t slots) {
  return impl_->queue().Run([&] { return impl_->Forward(batch, layers, lookahead, slots); });
}

absl::StatusOr<const float*> GpuDecoder::Logits(int64_t first, int64_t count) {
  const float* logits = nullptr;
  AFT_RETURN_IF_ERROR(impl_->queue().Run([&] {
    logits = impl_->Logits(first, count);
    return absl::OkStatus();
  }));
  return logits;
}

}  // namespace aft
