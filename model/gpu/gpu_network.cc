#include "model/gpu/gpu_network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/add.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/product/quantize.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// bf16 halves the feed-forward's widest pass. fp16 would overflow before the activation.
Number UpNumberOf(Number format) { return format == Number::kBf16 ? Number::kBf16 : Number::kFp32; }

// Logits are computed for this number of tokens at a time, or for all rows of a decode step. It is
// large enough that the head's weights are read few times, and small enough that a long text to
// score needs little memory.
constexpr int64_t kLogitRows = 256;
int64_t LogitRows(const NetworkConfig& config, const GpuLimits& limits) {
  if (HeadRows(config) == 0) return 0;
  return std::min(limits.tokens, std::max(limits.slots, kLogitRows));
}

int64_t NormedWidth(const NetworkConfig& config, Number format) {
  const bool head_bias = HeadRows(config) > 0 && config.head_bias;
  return config.d_model + (config.qkv_bias || head_bias ? BiasColumns(format) : 0);
}

// All tokens of a step, in the order of its matrices.
cuda::TokenRows RowsOf(const GpuNetwork::Batch& batch) {
  return {batch.tokens, batch.token_slots, batch.token_positions, batch.chunks.rows == 0};
}

const float* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuNetwork>> GpuNetwork::Create(const NetworkConfig& config,
                                                               const TensorSource& tensors,
                                                               Number format,
                                                               const GpuLimits& limits,
                                                               GpuQueue* queue) {
  AFT_CHECK(limits.rows >= 1 && limits.tokens >= 1);
  AFT_RETURN_IF_ERROR(CheckNormWidth(config));
  AFT_ASSIGN_OR_RETURN(const uint64_t fingerprint, CheckTensors(config, tensors));
  AFT_RETURN_IF_ERROR(CheckFormat(config, format));
  std::unique_ptr<GpuNetwork> network(new GpuNetwork(config, fingerprint, format, limits, queue));
  AFT_RETURN_IF_ERROR(CheckFits(network->Needs(), *queue));
  AFT_RETURN_IF_ERROR(queue->Run([&] { return network->Load(tensors); }));
  return network;
}

GpuNetwork::GpuNetwork(const NetworkConfig& config, uint64_t fingerprint, Number format,
                       const GpuLimits& limits, GpuQueue* queue)
    : config_(config),
      fingerprint_(fingerprint),
      number_(format),
      activation_number_(ActivationFormat(format)),
      up_number_(UpNumberOf(activation_number_)),
      activates_in_product_((quantizes() || !ShiftsFeedForward(config)) &&
                            GpuLinear::Activates(config.activation, format, queue->device())),
      limits_(limits),
      max_logit_rows_(LogitRows(config, limits)),
      queue_(queue),
      hid_(MixerWidth(config)),
      packed_width_(PackedWidth(config.mixer, hid_)),
      normed_width_(NormedWidth(config, format)) {}

std::vector<GpuNeed> GpuNetwork::Needs() const {
  int64_t weights = DeviceWeightBytes(config_, number_);
  if (copies_embedding()) weights += HeadRows(config_) * normed_width_ * NumberBytes(number_);
  const int64_t wide = std::max(config_.d_model, hid_);
  const int64_t half = NumberBytes(activation_number_);
  const int64_t ffn = NumberBytes(up_number_) + (up_number_ == activation_number_ ? 0 : half);
  const int64_t streams = replaces_stream() || shifts() ? 3 : 2;
  const int64_t per_token = 4 * (streams * config_.d_model + packed_width_) +
                            half * (2 * wide + normed_width_) + ffn * config_.d_ff +
                            QuantizedRow() +
                            (shifts() ? GpuShiftBuffers::BytesPerToken(config_, number_) : 0);
  std::vector<GpuNeed> needs = {
      {"weights", weights},
      {absl::StrCat("activations of ", limits_.tokens, " tokens"), limits_.tokens * per_token}};
  if (has_head()) {
    needs.push_back({absl::StrCat("logits of ", max_logit_rows_, " tokens"),
                     max_logit_rows_ * HeadRows(config_) * int64_t{sizeof(float)}});
  } else {
    needs.push_back({absl::StrCat("vectors of ", limits_.tokens, " tokens"),
                     limits_.tokens * config_.d_model * int64_t{sizeof(float)}});
  }
  return needs;
}

int64_t GpuNetwork::QuantizedRow() const {
  if (!quantizes()) return 0;
  return cuda::QuantizedStride(std::max({config_.d_model, hid_, config_.d_ff}));
}

absl::Status GpuNetwork::Load(const TensorSource& source) {
  embed_model_.width = config_.d_model;
  if (!is_bare_mixer()) AFT_RETURN_IF_ERROR(LoadEmbedding(source));
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    AFT_ASSIGN_OR_RETURN(const TensorMap tensors, source.ReadAll(absl::StrCat("layers.", i, ".")));
    AFT_ASSIGN_OR_RETURN(GpuLayer layer, GpuLayer::Create(config_, i, tensors, number_,
                                                          activates_in_product_, queue_->device()));
    weight_bytes_ += layer.weight_bytes;
    layers_.push_back(std::move(layer));
  }
  if (is_bare_mixer()) return MakeActivations();
  if (HasNormBehind(config_)) {
    AFT_ASSIGN_OR_RETURN(const TensorMap norm, source.ReadAll("norm."));
    norm_ = LoadNorm(norm, "norm");
  }
  if (config_.embedding_norm) {
    AFT_ASSIGN_OR_RETURN(const TensorMap norm, source.ReadAll("embed_norm."));
    embed_norm_ = LoadNorm(norm, "embed_norm");
  }
  if (has_head()) AFT_RETURN_IF_ERROR(LoadHead(source));
  return MakeActivations();
}

absl::Status GpuNetwork::LoadHead(const TensorSource& source) {
  at::Tensor bias;
  if (config_.head_bias) {
    AFT_ASSIGN_OR_RETURN(bias, source.Read("head.bias"));
  }
  if (config_.tie_embeddings && !copies_embedding()) {
    head_ = bias.defined() ? embed_.WithBias(bias.to(queue_->device())) : embed_;
    weight_bytes_ += DeviceBytes(bias);
    return absl::OkStatus();
  }
  const char* const name = config_.tie_embeddings ? "embed.weight" : "head.weight";
  AFT_ASSIGN_OR_RETURN(const at::Tensor weight, source.Read(name));
  AFT_ASSIGN_OR_RETURN(head_, GpuLinear::Create(name, weight, bias, number_, queue_->device()));
  weight_bytes_ += head_.weight_bytes();
  return absl::OkStatus();
}

GpuNorm GpuNetwork::LoadNorm(const TensorMap& tensors, const std::string& name) {
  GpuNorm norm = GpuNorm::Load(tensors, name, queue_->device());
  weight_bytes_ += norm.weight_bytes();
  return norm;
}

absl::Status GpuNetwork::LoadEmbedding(const TensorSource& source) {
  AFT_ASSIGN_OR_RETURN(const at::Tensor table, source.Read("embed.weight"));
  AFT_ASSIGN_OR_RETURN(
      embed_, GpuLinear::Create("embed.weight", table, at::Tensor(), number_, queue_->device()));
  weight_bytes_ += embed_.weight_bytes();
  embed_model_.table = embed_.weight();
  embed_model_.table_scale = embed_.scale();
  embed_model_.type = number_;
  embed_model_.scale = config_.embedding_scale;
  if (config_.position == PositionKind::kLearned) {
    AFT_ASSIGN_OR_RETURN(const TensorMap positions, source.ReadAll("position."));
    positions_ = positions.at("position.weight").to(queue_->device());
    weight_bytes_ += DeviceBytes(positions_);
    embed_model_.positions = positions_.const_data_ptr<float>();
  }
  if (config_.position == PositionKind::kSinusoidal) {
    at::Tensor frequencies = at::empty({(config_.d_model + 1) / 2}, at::kDouble);
    for (int64_t i = 0; i < frequencies.numel(); ++i) {
      frequencies.data_ptr<double>()[i] =
          std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(config_.d_model));
    }
    frequencies_ = frequencies.to(queue_->device());
    embed_model_.frequencies = frequencies_.const_data_ptr<double>();
  }
  return absl::OkStatus();
}

absl::Status GpuNetwork::MakeActivations() {
  int64_t floats = 0;
  int64_t scratch = 0;
  for (const GpuLayer& layer : layers_) {
    floats = std::max(floats, layer.mixer->workspace_floats(limits_));
    scratch_offsets_.push_back(scratch);
    if (generates()) scratch += limits_.slots * layer.mixer->slot_scratch_floats();
  }
  const at::Device device = queue_->device();
  const int64_t tokens = limits_.tokens;
  for (DeviceBuffer& stream : streams_) {
    if (&stream == &streams_[2] && !replaces_stream() && !shifts()) continue;
    stream = DeviceBuffer(tokens * config_.d_model, Number::kFp32, device);
  }
  for (DeviceBuffer& input : inputs_) {
    input = DeviceBuffer(tokens * std::max(config_.d_model, hid_), activation_number_, device);
  }
  if (quantizes()) quantized_ = DeviceBuffer(tokens * QuantizedRow(), number_, device);
  normed_ = DeviceBuffer(tokens * normed_width_, activation_number_, device);
  normed_.Rows(0, tokens, normed_width_).fill_(1);  // norms leave the last columns as they are
  packed_ = DeviceBuffer(tokens * packed_width_, Number::kFp32, device);
  up_ = DeviceBuffer(tokens * config_.d_ff, up_number_, device);
  if (up_number_ != activation_number_) {
    activated_ = DeviceBuffer(tokens * config_.d_ff, ActivatedNumber(config_, number_), device);
  }
  if (has_head()) {
    logits_ = DeviceBuffer(max_logit_rows_ * HeadRows(config_), Number::kFp32, device);
  } else {
    vectors_ = DeviceBuffer(tokens * config_.d_model, Number::kFp32, device);
  }
  if (shifts()) shift_ = GpuShiftBuffers(config_, number_, tokens, device);
  if (!generates()) no_slots_ = at::zeros({tokens}, at::TensorOptions(device).dtype(at::kInt));
  AFT_RETURN_IF_ERROR(
      CheckFits({{"the mixers' workspace", 4 * floats}, {"look-ahead", 4 * scratch}}, *queue_));
  workspace_ = at::empty({floats}, at::TensorOptions(device).dtype(at::kFloat));
  slot_scratch_ = at::zeros({scratch}, at::TensorOptions(device).dtype(at::kFloat));
  return absl::OkStatus();
}

int64_t GpuNetwork::workspace_bytes() const {
  int64_t bytes = DeviceBytes(workspace_) + DeviceBytes(slot_scratch_) + DeviceBytes(no_slots_) +
                  quantized_.bytes() + normed_.bytes() + packed_.bytes() + up_.bytes() +
                  activated_.bytes() + logits_.bytes() + vectors_.bytes() + shift_.bytes();
  for (const DeviceBuffer& stream : streams_) bytes += stream.bytes();
  for (const DeviceBuffer& input : inputs_) bytes += input.bytes();
  return bytes;
}

std::vector<StateSpec> GpuNetwork::state_specs() const {
  std::vector<StateSpec> specs;
  for (const GpuLayer& layer : layers_) {
    for (StateSpec& spec : layer.state_specs(config_)) specs.push_back(std::move(spec));
  }
  return specs;
}

absl::Status GpuNetwork::Embed(const Batch& batch) {
  AFT_CHECK(batch.decode.rows <= limits_.slots && batch.chunks.rows <= limits_.rows);
  return EmbedTokens(embed_model_, batch.ids, batch.token_slots, batch.token_positions,
                     batch.last_sampled, batch.tokens);
}

absl::Status GpuNetwork::Embed(const Texts& texts) {
  AFT_CHECK(texts.texts.sequences <= limits_.rows);
  cuda::EmbedModel model = embed_model_;
  if (texts.vectors != nullptr) {
    model.table = texts.vectors;
    model.type = Number::kFp32;
    model.scale = 1.0F;
  }
  return EmbedTokens(model, texts.ids, no_slots_.const_data_ptr<int32_t>(), texts.token_positions,
                     nullptr, texts.tokens);
}

absl::Status GpuNetwork::EmbedTokens(const cuda::EmbedModel& model, const int32_t* ids,
                                     const int32_t* slots, const int64_t* positions,
                                     const int32_t* last_sampled, int64_t count) {
  AFT_CHECK(count <= limits_.tokens);
  // Every step starts with the same buffers, so that graphs and steps of other shapes agree.
  x_ = &streams_[0];
  branch_ = &streams_[1];
  next_ = &streams_[2];
  mixed_ = &inputs_[0];
  spare_ = &inputs_[1];
  pending_ = false;
  output_count_ = 0;
  float* const x = static_cast<float*>(x_->Out(config_.d_model).data);
  AFT_RETURN_IF_ERROR(KernelStatus(
      cuda::Embed(model, ids, slots, positions, last_sampled, count, x, queue_->stream()),
      "Embed"));
  return config_.embedding_norm ? AddPendingAndNorm(embed_norm_, count) : absl::OkStatus();
}

absl::Status GpuNetwork::AddPending(const GpuNorm& norm, int64_t count, cuda::Out y) {
  const int64_t d = config_.d_model;
  const cuda::NormModel model = {d, norm.weight.const_data_ptr<float>(),
                                 norm.bias.const_data_ptr<float>(), config_.norm_eps};
  const cuda::In branch = pending_ ? branch_->In(d) : cuda::In();
  const float* const bias = std::exchange(pending_bias_, nullptr);
  pending_ = false;
  float* const x = static_cast<float*>(x_->Out(d).data);
  return KernelStatus(cuda::AddNorm(model, x, branch, bias, count, y, queue_->stream()), "AddNorm");
}

absl::Status GpuNetwork::AddPendingAndNorm(const GpuNorm& norm, int64_t count) {
  AFT_RETURN_IF_ERROR(AddPending(norm, count, next_->Out(config_.d_model)));
  std::swap(x_, next_);
  return absl::OkStatus();
}

absl::StatusOr<const float*> GpuNetwork::AddPendingForShift(const GpuNorm& norm, int64_t count) {
  AFT_RETURN_IF_ERROR(AddPending(norm, count, next_->Out(config_.d_model)));
  return static_cast<const float*>(next_->In(config_.d_model).data);
}

absl::StatusOr<at::Tensor> GpuNetwork::Operand(const at::Tensor& rows) const {
  if (!quantizes()) return rows;
  const int64_t count = rows.size(0);
  const int64_t width = rows.size(1);
  const cuda::In in = {rows.const_data_ptr(), Number::kFp32, rows.stride(0)};
  AFT_RETURN_IF_ERROR(
      KernelStatus(cuda::QuantizeRows({width}, in, count, quantized_.Out(width), queue_->stream()),
                   "QuantizeRows"));
  return quantized_.Rows(0, count, width);
}

absl::StatusOr<at::Tensor> GpuNetwork::NormedOperand(const GpuNorm& norm, int64_t count,
                                                     const DeviceBuffer& to, int64_t stride) {
  const int64_t d = config_.d_model;
  const DeviceBuffer& buffer = quantizes() ? quantized_ : to;
  const int64_t width = quantizes() ? d : stride;
  if (!is_bare_mixer() && !config_.post_norm) {
    AFT_RETURN_IF_ERROR(AddPending(norm, count, buffer.Out(width)));
  } else if (quantizes()) {
    return Operand(x_->Rows(0, count, d));
  } else {
    buffer.Rows(0, count, width).narrow(1, 0, d).copy_(x_->Rows(0, count, d));
  }
  return buffer.Rows(0, count, width);
}

absl::Status GpuNetwork::Pack(const GpuLayer& layer, int64_t count) {
  AFT_ASSIGN_OR_RETURN(const at::Tensor x,
                       NormedOperand(layer.norm1, count, normed_, normed_width_));
  return layer.qkv.Forward(x.narrow(1, 0, layer.qkv.columns()),
                           packed_.Rows(0, count, packed_width_), queue_->stream());
}

absl::Status GpuNetwork::Mix(int64_t layer, const Batch& batch,
                             const std::vector<StateView>& states) {
  const StateView* const own = StatesOf(layer, states);
  const StateView& state = own[0];
  const GpuLayer& parts = layers_[static_cast<size_t>(layer)];
  const GpuMixer& mixer = *parts.mixer;
  if (parts.shifted.has_value()) {
    const int64_t count = batch.tokens;
    AFT_ASSIGN_OR_RETURN(const float* x, AddPendingForShift(parts.norm1, count));
    AFT_RETURN_IF_ERROR(
        parts.shifted->Forward(x, RowsOf(batch), own[1], shift_, branch_->Rows(0, count, hid_),
                               packed_.Rows(0, count, packed_width_), queue_->stream()));
  } else {
    AFT_RETURN_IF_ERROR(Pack(parts, batch.tokens));
  }
  float* const workspace = workspace_.data_ptr<float>();
  const int64_t decoded = batch.decode.rows;
  if (decoded > 0) {
    float* const scratch =
        slot_scratch_.data_ptr<float>() + scratch_offsets_[static_cast<size_t>(layer)];
    AFT_RETURN_IF_ERROR(
        mixer.Step(batch.decode, packed(0), state, scratch, mixed(0), workspace, queue_->stream()));
  }
  if (batch.chunks.rows == 0) return absl::OkStatus();
  return mixer.Prefill(batch.chunks, packed(decoded), state, mixed(decoded), workspace,
                       queue_->stream());
}

absl::Status GpuNetwork::ShiftFeedForward(int64_t layer, const Batch& batch,
                                          const std::vector<StateView>& states) {
  if (!shifts()) return absl::OkStatus();
  const GpuLayer& parts = layers_[static_cast<size_t>(layer)];
  AFT_RETURN_IF_ERROR(ProjectMixed(parts, batch.tokens));
  AFT_ASSIGN_OR_RETURN(const float* x, AddPendingForShift(parts.norm2, batch.tokens));
  for (int64_t part = 0; part < parts.shift->parts(); ++part) {
    shifted_[part] = shift_.Input(part, batch.tokens);
  }
  return parts.shift->Forward(x, RowsOf(batch), StatesOf(layer, states)[2], shift_,
                              queue_->stream());
}

absl::Status GpuNetwork::Encode(int64_t layer, const Texts& texts) {
  const GpuLayer& parts = layers_[static_cast<size_t>(layer)];
  AFT_RETURN_IF_ERROR(Pack(parts, texts.tokens));
  return parts.mixer->Encode(texts.texts, packed(0), mixed(0), workspace_.data_ptr<float>(),
                             queue_->stream());
}

absl::Status GpuNetwork::Keep(const int64_t* outputs, int64_t count) {
  AFT_CHECK(!pending_);
  const int64_t d = config_.d_model;
  const auto gather = [&](cuda::In from, cuda::Out to, int64_t width) {
    return KernelStatus(cuda::GatherRows(from, outputs, count, width, to, queue_->stream()),
                        "GatherRows");
  };
  AFT_RETURN_IF_ERROR(gather(x_->In(d), branch_->Out(d), d));
  std::swap(x_, branch_);
  if (shifts()) {  // the mixer's output has been read, and its buffer is free
    DeviceBuffer* const kept[] = {spare_, mixed_};
    for (int64_t part = 0; part < layers_.back().shift->parts(); ++part) {
      const cuda::In input = {shifted_[part].const_data_ptr(), activation_number_, d};
      AFT_RETURN_IF_ERROR(gather(input, kept[part]->Out(d), d));
      shifted_[part] = kept[part]->Rows(0, count, d);
    }
    return absl::OkStatus();
  }
  AFT_RETURN_IF_ERROR(gather(mixed_->In(hid_), spare_->Out(hid_), hid_));
  std::swap(mixed_, spare_);
  return absl::OkStatus();
}

absl::Status GpuNetwork::ProjectMixed(const GpuLayer& layer, int64_t count) {
  const int64_t d = config_.d_model;
  AFT_ASSIGN_OR_RETURN(const at::Tensor x, Operand(mixed_->Rows(0, count, hid_)));
  AFT_RETURN_IF_ERROR(layer.out.Forward(x, branch_->Rows(0, count, d), queue_->stream()));
  pending_ = true;
  pending_bias_ = DataOrNull(layer.out_bias);
  return absl::OkStatus();
}

absl::Status GpuNetwork::FeedForward(const GpuLayer& layer, const at::Tensor& x, int64_t count) {
  const int64_t d = config_.d_model;
  const int64_t ff = config_.d_ff;
  const at::Tensor up = up_.Rows(0, count, ff);
  const DeviceBuffer& activated = up_number_ == activation_number_ ? up_ : activated_;
  if (activates_in_product_) {
    AFT_RETURN_IF_ERROR(
        layer.up.ForwardActivated(x, layer.up_bias, config_.activation, up, queue_->stream()));
  } else {
    AFT_RETURN_IF_ERROR(layer.up.Forward(x, up, queue_->stream()));
    AFT_RETURN_IF_ERROR(
        KernelStatus(cuda::BiasActivation(up_.In(ff), DataOrNull(layer.up_bias), config_.activation,
                                          count, ff, activated.Out(ff), queue_->stream()),
                     "BiasActivation"));
  }
  AFT_ASSIGN_OR_RETURN(const at::Tensor operand, Operand(activated.Rows(0, count, ff)));
  AFT_RETURN_IF_ERROR(layer.down.Forward(operand, branch_->Rows(0, count, d), queue_->stream()));
  pending_ = true;
  pending_bias_ = DataOrNull(layer.down_bias);
  return absl::OkStatus();
}

absl::Status GpuNetwork::FinishShifted(const GpuLayer& layer, int64_t count) {
  const int64_t d = config_.d_model;
  AFT_ASSIGN_OR_RETURN(const at::Tensor x, Operand(shifted_[0].narrow(0, 0, count)));
  AFT_RETURN_IF_ERROR(FeedForward(layer, x, count));
  if (config_.feed_forward != FeedForwardKind::kGatedChannelMix) return absl::OkStatus();
  const at::Tensor gate = next_->Rows(0, count, d);
  AFT_ASSIGN_OR_RETURN(const at::Tensor gated, Operand(shifted_[1].narrow(0, 0, count)));
  AFT_RETURN_IF_ERROR(layer.gate.Forward(gated, gate, queue_->stream()));
  float* const branch = static_cast<float*>(branch_->Out(d).data);
  return KernelStatus(
      cuda::MultiplyBySigmoid(gate.const_data_ptr<float>(), count, d, branch, queue_->stream()),
      "MultiplyBySigmoid");
}

absl::Status GpuNetwork::Finish(int64_t index, int64_t count) {
  const GpuLayer& layer = layers_[static_cast<size_t>(index)];
  if (shifts()) return FinishShifted(layer, count);
  const int64_t d = config_.d_model;
  AFT_RETURN_IF_ERROR(ProjectMixed(layer, count));
  if (is_bare_mixer()) {
    at::Tensor vectors = vectors_.Rows(0, count, d);
    at::add_out(vectors, branch_->Rows(0, count, d), layer.out_bias);
    return absl::OkStatus();
  }
  if (config_.post_norm) AFT_RETURN_IF_ERROR(AddPendingAndNorm(layer.norm1, count));
  if (!HasFeedForward(config_, index)) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(const at::Tensor x, NormedOperand(layer.norm2, count, *spare_, d));
  AFT_RETURN_IF_ERROR(FeedForward(layer, x, count));
  const bool norms = config_.post_norm && HasSecondNorm(config_, index);
  return norms ? AddPendingAndNorm(layer.norm2, count) : absl::OkStatus();
}

absl::Status GpuNetwork::FinalNorm(int64_t count) {
  output_count_ = count;
  if (is_bare_mixer()) return absl::OkStatus();
  const int64_t d = config_.d_model;
  if (!HasNormBehind(config_)) {
    if (!config_.final_norm) {
      pending_ = false;
      pending_bias_ = nullptr;
      at::Tensor x = x_->Rows(0, count, d).add_(branch_->Rows(0, count, d));
      if (const at::Tensor& bias = layers_.back().down_bias; bias.defined()) x.add_(bias);
    }
    const at::Tensor to = has_head() ? normed_.Rows(0, count, normed_width_).narrow(1, 0, d)
                                     : vectors_.Rows(0, count, d);
    to.copy_(x_->Rows(0, count, d));
    return absl::OkStatus();
  }
  return AddPending(norm_, count, has_head() ? normed() : vectors_.Out(d));
}

absl::StatusOr<const float*> GpuNetwork::Logits(int64_t first, int64_t count) {
  AFT_CHECK(first >= 0 && count <= max_logit_rows_ && first + count <= output_count_);
  AFT_ASSIGN_OR_RETURN(const at::Tensor x, Operand(normed_.Rows(first, count, normed_width_)));
  AFT_RETURN_IF_ERROR(head_.Forward(x.narrow(1, 0, head_.columns()),
                                    logits_.Rows(0, count, HeadRows(config_)), queue_->stream()));
  return static_cast<const float*>(logits_.In(HeadRows(config_)).data);
}

static_assert(Network<GpuNetwork>);

}  // namespace aft
