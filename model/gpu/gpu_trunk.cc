#include "model/gpu/gpu_trunk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/gpu/kernel_status.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// bf16 halves the feed-forward's widest pass; fp16 would overflow before the activation.
Number UpNumberOf(Number format) { return format == Number::kBf16 ? Number::kBf16 : Number::kFp32; }

int64_t NormedWidth(const NetworkConfig& config) {
  const bool head_bias = config.architecture == Architecture::kDecoderLm && config.head_bias;
  return config.d_model + (config.qkv_bias || head_bias ? kBiasColumns : 0);
}

std::string InMib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue) {
  int64_t all = 0;
  std::string words;
  for (const GpuNeed& need : needs) {
    all += need.bytes;
    absl::StrAppend(&words, words.empty() ? "" : ", ", need.name, " ", InMib(need.bytes));
  }
  if (all <= queue.free_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(queue.name(), " has ", InMib(queue.free_bytes()), " of ",
                   InMib(queue.total_bytes()), " free, the model needs ", InMib(all), ": ", words));
}

GpuTrunk::GpuTrunk(const NetworkConfig& config, Number format, const GpuLimits& limits,
                   GpuQueue* queue)
    : config_(config),
      number_(format),
      up_number_(UpNumberOf(format)),
      limits_(limits),
      queue_(queue),
      hid_(MixerWidth(config)),
      packed_width_(PackedWidth(config.mixer, hid_)),
      normed_width_(NormedWidth(config)) {}

std::vector<GpuNeed> GpuTrunk::Needs() const {
  int64_t weights = 0;
  for (const TensorSpec& spec : ExpectedTensors(config_)) {
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    const bool matrix = absl::EndsWith(spec.name, ".weight") && spec.shape.size() == 2 &&
                        !absl::StrContains(spec.name, "position.") &&
                        !absl::StrContains(spec.name, "location.");
    weights += count * NumberBytes(matrix ? number_ : Number::kFp32);
  }
  const int64_t wide = std::max(config_.d_model, hid_);
  const int64_t half = NumberBytes(number_);
  const int64_t ffn = NumberBytes(up_number_) + (up_number_ == number_ ? 0 : half);
  const int64_t per_token = 4 * (2 * config_.d_model + packed_width_) +
                            half * (2 * wide + normed_width_) + ffn * config_.d_ff;
  return {{"weights", weights},
          {absl::StrCat("activations of ", limits_.tokens, " tokens"), limits_.tokens * per_token}};
}

absl::Status GpuTrunk::Load(const TensorMap& tensors) {
  AFT_RETURN_IF_ERROR(LoadEmbedding(tensors));
  for (int64_t i = 0; i < config_.n_layers; ++i) AFT_RETURN_IF_ERROR(LoadLayer(tensors, i));
  norm_ = LoadNorm(tensors, "norm");
  MakeActivations();
  int64_t floats = 0;
  for (const GpuLayer& layer : layers_) {
    floats = std::max(floats, layer.mixer->workspace_floats(limits_));
  }
  AFT_RETURN_IF_ERROR(CheckFits({{"the mixers' workspace", 4 * floats}}, *queue_));
  workspace_ = at::empty({floats}, at::TensorOptions(queue_->device()).dtype(at::kFloat));
  return absl::OkStatus();
}

at::Tensor GpuTrunk::LoadVector(const TensorMap& tensors, const std::string& name) {
  const at::Tensor vector = ToDevice(tensors.at(name), queue_->device());
  weight_bytes_ += DeviceBytes(vector);
  return vector;
}

GpuNorm GpuTrunk::LoadNorm(const TensorMap& tensors, const std::string& name) {
  return {LoadVector(tensors, name + ".weight"), LoadVector(tensors, name + ".bias")};
}

absl::Status GpuTrunk::LoadEmbedding(const TensorMap& tensors) {
  AFT_ASSIGN_OR_RETURN(
      embed_, ToFormat("embed.weight", tensors.at("embed.weight"), number_, queue_->device()));
  weight_bytes_ += DeviceBytes(embed_);
  embed_model_.width = config_.d_model;
  embed_model_.table = embed_.const_data_ptr();
  embed_model_.type = number_;
  embed_model_.scale = config_.embedding_scale;
  if (config_.position == PositionKind::kLearned) {
    positions_ = LoadVector(tensors, "position.weight");
    embed_model_.positions = positions_.const_data_ptr<float>();
  }
  if (config_.position == PositionKind::kSinusoidal) {
    at::Tensor frequencies = at::empty({(config_.d_model + 1) / 2}, at::kDouble);
    for (int64_t i = 0; i < frequencies.numel(); ++i) {
      frequencies.data_ptr<double>()[i] =
          std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(config_.d_model));
    }
    frequencies_ = ToDevice(frequencies, queue_->device());
    embed_model_.frequencies = frequencies_.const_data_ptr<double>();
  }
  return absl::OkStatus();
}

absl::Status GpuTrunk::LoadLayer(const TensorMap& tensors, int64_t index) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const std::string mixer_prefix = prefix + "mixer.";
  const auto linear = [&](const std::string& name, bool bias) -> absl::StatusOr<GpuLinear> {
    AFT_ASSIGN_OR_RETURN(
        GpuLinear made, GpuLinear::Create(prefix + name, tensors.at(prefix + name + ".weight"),
                                          bias ? tensors.at(prefix + name + ".bias") : at::Tensor(),
                                          number_, queue_->device()));
    weight_bytes_ += made.weight_bytes();
    return made;
  };
  MixerTables tables;
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, mixer_prefix)) tables[name.substr(mixer_prefix.size())] = tensor;
  }
  GpuLayer layer;
  layer.norm1 = LoadNorm(tensors, prefix + "norm1");
  AFT_ASSIGN_OR_RETURN(layer.qkv, linear("mixer.qkv", config_.qkv_bias));
  AFT_ASSIGN_OR_RETURN(layer.mixer, MakeGpuMixer(config_.mixer, hid_, tables, {config_.max_seq_len},
                                                 queue_->device()));
  weight_bytes_ += layer.mixer->weight_bytes();
  AFT_ASSIGN_OR_RETURN(layer.out, linear("mixer.out", false));
  layer.out_bias = LoadVector(tensors, mixer_prefix + "out.bias");
  layer.norm2 = LoadNorm(tensors, prefix + "norm2");
  AFT_ASSIGN_OR_RETURN(layer.up, linear("ffn.up", false));
  layer.up_bias = LoadVector(tensors, prefix + "ffn.up.bias");
  AFT_ASSIGN_OR_RETURN(layer.down, linear("ffn.down", false));
  layer.down_bias = LoadVector(tensors, prefix + "ffn.down.bias");
  layers_.push_back(std::move(layer));
  return absl::OkStatus();
}

void GpuTrunk::MakeActivations() {
  const at::Device device = queue_->device();
  const int64_t tokens = limits_.tokens;
  for (DeviceBuffer& stream : streams_) {
    stream = DeviceBuffer(tokens * config_.d_model, Number::kFp32, device);
  }
  for (DeviceBuffer& input : inputs_) {
    input = DeviceBuffer(tokens * std::max(config_.d_model, hid_), number_, device);
  }
  normed_ = DeviceBuffer(tokens * normed_width_, number_, device);
  normed_.Rows(0, tokens, normed_width_).fill_(1);  // the columns that no norm writes stay
  packed_ = DeviceBuffer(tokens * packed_width_, Number::kFp32, device);
  up_ = DeviceBuffer(tokens * config_.d_ff, up_number_, device);
  if (up_number_ != number_) activated_ = DeviceBuffer(tokens * config_.d_ff, number_, device);
}

int64_t GpuTrunk::workspace_bytes() const {
  int64_t bytes = DeviceBytes(workspace_) + normed_.bytes() + packed_.bytes() + up_.bytes() +
                  activated_.bytes();
  for (const DeviceBuffer& stream : streams_) bytes += stream.bytes();
  for (const DeviceBuffer& input : inputs_) bytes += input.bytes();
  return bytes;
}

absl::Status GpuTrunk::Embed(const int32_t* tokens, const int32_t* slots, const int64_t* positions,
                             const int32_t* last_sampled, int64_t count) {
  AFT_CHECK(count <= limits_.tokens);
  // The same buffers in every step, so that graphs and steps of other shapes agree.
  x_ = &streams_[0];
  branch_ = &streams_[1];
  mixed_ = &inputs_[0];
  spare_ = &inputs_[1];
  pending_ = false;
  float* const x = static_cast<float*>(x_->Out(config_.d_model).data);
  return KernelStatus(
      cuda::Embed(embed_model_, tokens, slots, positions, last_sampled, count, x, queue_->stream()),
      "Embed");
}

absl::Status GpuTrunk::AddPending(const GpuNorm& norm, int64_t count, cuda::Out y) {
  const int64_t d = config_.d_model;
  const cuda::NormModel model = {d, norm.weight.const_data_ptr<float>(),
                                 norm.bias.const_data_ptr<float>(), config_.norm_eps};
  const cuda::In branch = pending_ ? branch_->In(d) : cuda::In();
  const float* const bias = std::exchange(pending_bias_, nullptr);
  pending_ = false;
  float* const x = static_cast<float*>(x_->Out(d).data);
  return KernelStatus(cuda::AddNorm(model, x, branch, bias, count, y, queue_->stream()), "AddNorm");
}

absl::Status GpuTrunk::Pack(size_t i, int64_t count) {
  const GpuLayer& layer = layers_[i];
  AFT_RETURN_IF_ERROR(AddPending(layer.norm1, count, normed()));
  layer.qkv.Forward(NormedFor(layer.qkv, 0, count), packed_.Rows(0, count, packed_width_));
  return absl::OkStatus();
}

absl::Status GpuTrunk::Keep(const int64_t* index, int64_t count) {
  AFT_CHECK(!pending_);
  const int64_t d = config_.d_model;
  AFT_RETURN_IF_ERROR(
      KernelStatus(cuda::GatherRows(x_->In(d), index, count, d, branch_->Out(d), queue_->stream()),
                   "GatherRows"));
  AFT_RETURN_IF_ERROR(KernelStatus(
      cuda::GatherRows(mixed_->In(hid_), index, count, hid_, spare_->Out(hid_), queue_->stream()),
      "GatherRows"));
  std::swap(x_, branch_);
  std::swap(mixed_, spare_);
  return absl::OkStatus();
}

absl::Status GpuTrunk::Finish(size_t i, int64_t count) {
  const GpuLayer& layer = layers_[i];
  const int64_t d = config_.d_model;
  const int64_t ff = config_.d_ff;
  layer.out.Forward(mixed_->Rows(0, count, hid_), branch_->Rows(0, count, d));
  pending_ = true;
  pending_bias_ = layer.out_bias.const_data_ptr<float>();
  AFT_RETURN_IF_ERROR(AddPending(layer.norm2, count, spare_->Out(d)));
  layer.up.Forward(spare_->Rows(0, count, d), up_.Rows(0, count, ff));
  const DeviceBuffer& activated = up_number_ == number_ ? up_ : activated_;
  AFT_RETURN_IF_ERROR(KernelStatus(
      cuda::BiasActivation(up_.In(ff), layer.up_bias.const_data_ptr<float>(), config_.activation,
                           count, ff, activated.Out(ff), queue_->stream()),
      "BiasActivation"));
  layer.down.Forward(activated.Rows(0, count, ff), branch_->Rows(0, count, d));
  pending_ = true;
  pending_bias_ = layer.down_bias.const_data_ptr<float>();
  return absl::OkStatus();
}

absl::Status GpuTrunk::FinalNorm(int64_t count, cuda::Out y) { return AddPending(norm_, count, y); }

at::Tensor GpuTrunk::NormedFor(const GpuLinear& linear, int64_t first, int64_t count) const {
  return normed_.Rows(first, count, normed_width_).narrow(1, 0, linear.columns());
}

}  // namespace aft
