#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_layer.h"
#include "model/gpu/gpu_linear.h"
#include "model/gpu/gpu_need.h"
#include "model/gpu/gpu_queue.h"
#include "model/gpu/gpu_token_shift.h"
#include "model/kernels/cuda/rows/rows.h"
#include "model/network/check_tensors.h"
#include "model/network/network.h"

namespace aft {

// The network on a GPU (see Network). It owns weights, activations and the mixers' look-ahead sums.
// Weights, and so the operands of matrix products, are in `format`. The residual stream, keys,
// values, states and logits are always fp32: products of 16-bit numbers and of int8 are written as
// fp32, except the first one of a bf16 feed-forward. Operands of int8 are quantized by the norm
// that makes them, or by a launch of their own.
//
// Calls queue work on the queue's stream and return, within GpuQueue::Run. Steps allocate nothing
// and may be captured. Thread-compatible. Errors: INTERNAL, with LibTorch's or CUDA's text.
class GpuNetwork {
 public:
  // One step as arrays on the device: first `decode` rows of one token each, then prompt chunks.
  // Token i of the decode rows is row i of all matrices; the chunks' tokens follow.
  struct Batch {
    kernels::cuda::StepRows decode;            // without ages there is no look-ahead
    kernels::cuda::ChunkRows chunks;           // offsets count from the first chunk's first token
    int64_t tokens = 0;                        // of all rows
    const int32_t* ids = nullptr;              // [tokens], or kLastSampledToken
    const int32_t* token_slots = nullptr;      // [tokens]
    const int64_t* token_positions = nullptr;  // [tokens]
    const int32_t* last_sampled = nullptr;     // [slots]
    const int64_t* outputs = nullptr;          // -1: padding
    int64_t output_count = 0;
  };
  struct Texts {
    kernels::cuda::Texts texts;
    int64_t tokens = 0;
    const int32_t* ids = nullptr;              // [tokens]; with `vectors`: rows of them
    const int64_t* token_positions = nullptr;  // [tokens], within each text
    const float* vectors = nullptr;            // [tokens, d] fp32, in place of the embedding's rows
  };

  // Errors: DATA_LOSS (CheckTensors, or a weight that the format cannot hold), INVALID_ARGUMENT
  // (CheckFormat, CheckNormWidth), RESOURCE_EXHAUSTED (lists the memory that each part needs).
  // `queue` is borrowed; `tensors` are not kept.
  static absl::StatusOr<std::unique_ptr<GpuNetwork>> Create(const NetworkConfig& config,
                                                            const TensorSource& tensors,
                                                            Number format, const GpuLimits& limits,
                                                            GpuQueue* queue);

  const NetworkConfig& config() const { return config_; }
  uint64_t fingerprint() const { return fingerprint_; }  // CheckTensors
  Number format() const { return number_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t workspace_bytes() const;
  std::vector<StateSpec> state_specs() const;

  // The tokens that one look-ahead of the mixers serves, the same in all layers; 0: no look-ahead.
  int64_t lookahead_rows() const { return layers_.front().mixer->lookahead_rows(); }

  // With 2-D filters: the most columns of an image.
  int64_t max_grid_width() const { return layers_.front().mixer->max_grid_width(); }

  // Begin a step or texts by computing the vectors of their tokens. REQUIRES: at most
  // GpuLimits::slots decode rows, GpuLimits::rows chunks or texts, and GpuLimits::tokens tokens;
  // ids in the vocabulary.
  absl::Status Embed(const Batch& batch);
  absl::Status Embed(const Texts& texts);
  absl::Status Mix(int64_t layer, const Batch& batch, const std::vector<StateView>& states);
  absl::Status Encode(int64_t layer, const Texts& texts);
  absl::Status ShiftFeedForward(int64_t layer, const Batch& batch,
                                const std::vector<StateView>& states);
  absl::Status Keep(const int64_t* outputs, int64_t count);
  absl::Status Finish(int64_t index, int64_t count);
  absl::Status FinalNorm(int64_t count);

  // Logits [count, HeadRows()] fp32, dense, of the outputs [first, first + count) of the last step,
  // or of these tokens of the last texts. They are valid until the next call. REQUIRES: count <=
  // max_logit_rows().
  absl::StatusOr<const float*> Logits(int64_t first, int64_t count);
  int64_t max_logit_rows() const { return max_logit_rows_; }

  // With a head: the vectors of the last step's outputs, which Logits reads.
  kernels::cuda::In hidden() const { return normed_.In(normed_width_); }

  // Without a head: vectors [tokens, d] fp32, dense, of all tokens of the last texts. They are
  // valid until the next call.
  const float* vectors() const {
    return static_cast<const float*>(vectors_.In(config_.d_model).data);
  }

 private:
  GpuNetwork(const NetworkConfig& config, uint64_t fingerprint, Number format,
             const GpuLimits& limits, GpuQueue* queue);

  bool generates() const { return config_.architecture == Architecture::kDecoderLm; }
  bool has_head() const { return HeadRows(config_) > 0; }
  // Whether a norm's result becomes the residual stream.
  bool replaces_stream() const { return config_.post_norm || config_.embedding_norm; }
  bool shifts() const { return ShiftsFeedForward(config_); }  // token shift in both halves
  bool is_bare_mixer() const { return config_.architecture == Architecture::kMixer; }
  bool quantizes() const { return IsQuantized(number_); }
  // Whether a tied head is a matrix of its own, with further columns for its bias.
  bool copies_embedding() const {
    return config_.tie_embeddings && config_.head_bias && !quantizes();
  }
  int64_t QuantizedRow() const;        // the most bytes of a row of quantized_
  std::vector<GpuNeed> Needs() const;  // memory that Load will need, as far as the config says
  absl::Status Load(const TensorSource& source);
  absl::Status LoadEmbedding(const TensorSource& source);
  absl::Status LoadHead(const TensorSource& source);
  GpuNorm LoadNorm(const TensorMap& tensors, const std::string& name);
  absl::Status MakeActivations();

  absl::Status EmbedTokens(const kernels::cuda::EmbedModel& model, const int32_t* ids,
                           const int32_t* slots, const int64_t* positions,
                           const int32_t* last_sampled, int64_t count);
  // AddPending with a result that replaces the residual stream.
  absl::Status AddPendingAndNorm(const GpuNorm& norm, int64_t count);
  // Returns `rows` as products read them: quantized, if weights are int8. Valid until the next
  // call.
  absl::StatusOr<at::Tensor> Operand(const at::Tensor& rows) const;
  // Computes the norm, unless it comes later, and returns it as products read it, in `to` with rows
  // of `stride` columns or quantized.
  absl::StatusOr<at::Tensor> NormedOperand(const GpuNorm& norm, int64_t count,
                                           const DeviceBuffer& to, int64_t stride);
  // Computes the layer's norm, unless it comes later, and the packed projections of the first
  // `count` rows, for its mixer.
  absl::Status Pack(const GpuLayer& layer, int64_t count);
  // Adds the pending branch to the residual stream, then computes the norm into y.
  absl::Status AddPending(const GpuNorm& norm, int64_t count, kernels::cuda::Out y);
  // Does this for a token shift, which reads and keeps fp32. Returns the norm [count, d].
  absl::StatusOr<const float*> AddPendingForShift(const GpuNorm& norm, int64_t count);
  // out(mixed) for the first rows. The result is the pending branch.
  absl::Status ProjectMixed(const GpuLayer& layer, int64_t count);
  // x [count, d] as products read it. The result is the pending branch.
  absl::Status FeedForward(const GpuLayer& layer, const at::Tensor& x, int64_t count);
  absl::Status FinishShifted(const GpuLayer& layer, int64_t count);
  // Returns the states of the layer, in the order of GpuLayer::state_specs.
  const StateView* StatesOf(int64_t layer, const std::vector<StateView>& states) const {
    return &states[static_cast<size_t>(layer) * (states.size() / layers_.size())];
  }
  kernels::cuda::In packed(int64_t first) const { return packed_.In(packed_width_, first); }
  kernels::cuda::Out mixed(int64_t first) const { return mixed_->Out(hid_, first); }
  kernels::cuda::Out normed() const { return normed_.Out(normed_width_); }

  const NetworkConfig config_;
  const uint64_t fingerprint_;
  const Number number_;
  const Number activation_number_;
  const Number up_number_;
  const bool activates_in_product_;
  const GpuLimits limits_;
  const int64_t max_logit_rows_;  // 0 without a head
  GpuQueue* const queue_;
  const int64_t hid_;
  const int64_t packed_width_;
  const int64_t normed_width_;  // d_model and columns of ones
  int64_t weight_bytes_ = 0;

  GpuLinear embed_;
  at::Tensor positions_;
  at::Tensor frequencies_;
  kernels::cuda::EmbedModel embed_model_;
  GpuNorm embed_norm_;  // only with NetworkConfig::embedding_norm
  std::vector<GpuLayer> layers_;
  GpuNorm norm_;
  GpuLinear head_;

  at::Tensor workspace_;  // used by one mixer at a time
  // For each layer [slots, GpuMixer::slot_scratch_floats()], which differs between layers: wide
  // biases need more. The offsets are of the layers' first floats.
  at::Tensor slot_scratch_;
  std::vector<int64_t> scratch_offsets_;
  at::Tensor no_slots_;      // all 0: texts have no slots; Embed pads where a slot is below 0
  DeviceBuffer streams_[3];  // [tokens, d]; the last one only if replaces_stream() or shifts()
  DeviceBuffer inputs_[2];   // [tokens, max(d, hid)]
  DeviceBuffer quantized_;   // only if quantizes(): the rows of one product
  DeviceBuffer normed_;
  DeviceBuffer packed_;
  DeviceBuffer up_;
  DeviceBuffer activated_;  // unused when the formats are the same, as up_ then serves
  DeviceBuffer logits_;
  DeviceBuffer vectors_;
  GpuShiftBuffers shift_;  // only if shifts()
  // These point to the buffers above during a step: the residual stream, the branch that will be
  // added to it (with the bias), the mixers' output, and spare buffers for both.
  DeviceBuffer* x_ = &streams_[0];
  DeviceBuffer* branch_ = &streams_[1];
  DeviceBuffer* next_ = &streams_[2];
  DeviceBuffer* mixed_ = &inputs_[0];
  DeviceBuffer* spare_ = &inputs_[1];
  at::Tensor shifted_[2];  // the inputs of the products after a feed-forward's shift
  const float* pending_bias_ = nullptr;
  bool pending_ = false;
  int64_t output_count_ = 0;  // of the last FinalNorm
};

}  // namespace aft
