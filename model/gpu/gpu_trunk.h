#ifndef AFT_MODEL_GPU_GPU_TRUNK_H_
#define AFT_MODEL_GPU_GPU_TRUNK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_decoder.h"
#include "model/gpu/gpu_linear.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_queue.h"
#include "model/kernels/cuda/rows/rows.h"

namespace aft {

// Something that takes memory of the device.
struct GpuNeed {
  std::string name;  // "logits of 64 tokens"
  int64_t bytes = 0;
};
// RESOURCE_EXHAUSTED, with all of it in words, when the device has less memory free.
absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue);

// The layer norm's constants on the device.
struct GpuNorm {
  at::Tensor weight;
  at::Tensor bias;
};

struct GpuLayer {
  GpuNorm norm1;
  GpuLinear qkv;
  std::unique_ptr<GpuMixer> mixer;
  GpuLinear out;
  at::Tensor out_bias;
  GpuNorm norm2;
  GpuLinear up;
  at::Tensor up_bias;
  GpuLinear down;
  at::Tensor down_bias;
};

// What GpuDecoder and GpuEncoder share: embedding, layers, final norm, and their activations. The
// parts of a step are called in the order in which they stand here, within GpuQueue::Run.
// Activations are dense matrices [tokens, ...]: the residual stream, what is added to it, and the
// mixers' input are fp32; what a product takes is in the weights' format. Thread-compatible.
class GpuTrunk {
 public:
  // REQUIRES: `tensors` passed CheckTensors. Throws LibTorch's exceptions; within GpuQueue::Run.
  GpuTrunk(const NetworkConfig& config, Number format, const GpuLimits& limits, GpuQueue* queue);
  absl::Status Load(const TensorMap& tensors);

  // What Load will take, as far as the config says.
  std::vector<GpuNeed> Needs() const;

  const std::vector<GpuLayer>& layers() const { return layers_; }
  const at::Tensor& embedding() const { return embed_; }
  Number number() const { return number_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t workspace_bytes() const;
  float* workspace() const { return workspace_.data_ptr<float>(); }

  // Starts a step of `count` tokens. The arrays are those of kernels::cuda::Embed.
  absl::Status Embed(const int32_t* tokens, const int32_t* slots, const int64_t* positions,
                     const int32_t* last_sampled, int64_t count);

  // Layer i up to the mixer: packed() is its input, mixed() the place for its output, both from
  // row `first` on.
  absl::Status Pack(size_t i, int64_t count);
  kernels::cuda::In packed(int64_t first) const { return packed_.In(packed_width_, first); }
  kernels::cuda::Out mixed(int64_t first) const { return mixed_->Out(hid_, first); }

  // From here on only rows index[0 .. count) matter (-1: zeros).
  absl::Status Keep(const int64_t* index, int64_t count);

  // Layer i from the mixer on.
  absl::Status Finish(size_t i, int64_t count);

  // The final norm of the first `count` rows, to `y` or as what a product takes.
  absl::Status FinalNorm(int64_t count, kernels::cuda::Out y);
  kernels::cuda::Out normed() const { return normed_.Out(normed_width_); }
  // Rows of it with as many columns of ones as `linear` needs.
  at::Tensor NormedFor(const GpuLinear& linear, int64_t first, int64_t count) const;

 private:
  absl::Status LoadEmbedding(const TensorMap& tensors);
  absl::Status LoadLayer(const TensorMap& tensors, int64_t index);
  GpuNorm LoadNorm(const TensorMap& tensors, const std::string& name);
  at::Tensor LoadVector(const TensorMap& tensors, const std::string& name);
  void MakeActivations();

  // What the layer before has left to be added to the residual stream, then the norm.
  absl::Status AddPending(const GpuNorm& norm, int64_t count, kernels::cuda::Out y);

  const NetworkConfig config_;
  const Number number_;
  const Number up_number_;
  const GpuLimits limits_;
  GpuQueue* const queue_;
  const int64_t hid_;
  const int64_t packed_width_;
  const int64_t normed_width_;  // d_model and columns of ones
  int64_t weight_bytes_ = 0;

  at::Tensor embed_;
  at::Tensor positions_;
  at::Tensor frequencies_;
  kernels::cuda::EmbedModel embed_model_;
  std::vector<GpuLayer> layers_;
  GpuNorm norm_;

  at::Tensor workspace_;
  DeviceBuffer streams_[2];  // [tokens, d]
  DeviceBuffer inputs_[2];   // [tokens, max(d, hid)]
  DeviceBuffer normed_;
  DeviceBuffer packed_;
  DeviceBuffer up_;
  DeviceBuffer activated_;  // up_ itself serves when the formats are the same
  // Of the above, during a step: the residual stream, what is to be added to it (with the bias),
  // the mixers' output, and room for as much.
  DeviceBuffer* x_ = &streams_[0];
  DeviceBuffer* branch_ = &streams_[1];
  DeviceBuffer* mixed_ = &inputs_[0];
  DeviceBuffer* spare_ = &inputs_[1];
  const float* pending_bias_ = nullptr;
  bool pending_ = false;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_TRUNK_H_
