#include "model/gpu/gpu_layer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/kernels/cuda/rows/rows.h"
#include "model/layers/token_shift.h"
#include "model/mixers/families.h"

namespace aft {

GpuNorm GpuNorm::Load(const WeightMap& tensors, const std::string& name, at::Device device) {
  return {tensors.at(name + ".weight").to(device), tensors.at(name + ".bias").to(device)};
}

absl::Status CheckNormWidth(const NetworkConfig& config) {
  const bool has_norms = config.architecture != Architecture::kMixer;
  if (!has_norms || config.d_model <= kernels::cuda::kMaxNormWidth) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("d_model: at most ", kernels::cuda::kMaxNormWidth,
                                                 " on a GPU, got ", config.d_model));
}

Number ActivatedNumber(const NetworkConfig& config, Number format) {
  const bool may_overflow =
      format == Number::kFp16 && config.activation == Activation::kSquaredRelu;
  return may_overflow ? Number::kBf16 : format;
}

absl::StatusOr<GpuLayer> GpuLayer::Create(const NetworkConfig& config, int64_t index,
                                          const WeightMap& tensors, Number format,
                                          bool activates_in_product, at::Device device) {
  GpuLayer layer;
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const auto load = [&](Number number, const char* name, GpuLinear& linear,
                        bool bias = false) -> absl::Status {
    AFT_ASSIGN_OR_RETURN(linear, GpuLinear::Load(tensors, prefix + name, bias, number, device));
    layer.weight_bytes += linear.weight_bytes();
    return absl::OkStatus();
  };
  // The network may have no such bias; then the result is undefined.
  const auto vector = [&](const char* name) {
    const auto found = tensors.find(prefix + name);
    const at::Tensor on_device = found == tensors.end() ? at::Tensor() : found->second.to(device);
    layer.weight_bytes += DeviceBytes(on_device);
    return on_device;
  };
  const auto norm = [&](const char* name) {
    GpuNorm made = GpuNorm::Load(tensors, prefix + name, device);
    layer.weight_bytes += made.weight_bytes();
    return made;
  };

  if (SpecOf(config.mixer.kind).token_shift) {
    AFT_ASSIGN_OR_RETURN(layer.shifted,
                         GpuShiftedProjection::Create(config, index, tensors, format, device));
    layer.weight_bytes += layer.shifted->weight_bytes();
  } else {
    AFT_RETURN_IF_ERROR(load(format, "mixer.qkv", layer.qkv, config.qkv_bias));
  }
  MixerTables tables;
  const std::string mixer_prefix = prefix + "mixer.";
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, mixer_prefix)) tables[name.substr(mixer_prefix.size())] = tensor;
  }
  AFT_ASSIGN_OR_RETURN(layer.mixer, MakeGpuMixer(config.mixer, MixerWidth(config), tables,
                                                 {config.max_seq_len}, device));
  layer.weight_bytes += layer.mixer->weight_bytes();
  AFT_RETURN_IF_ERROR(load(format, "mixer.out", layer.out));
  layer.out_bias = vector("mixer.out.bias");
  if (config.architecture == Architecture::kMixer) return layer;
  layer.norm1 = norm("norm1");
  if (!HasFeedForward(config, index)) return layer;
  if (HasSecondNorm(config, index)) layer.norm2 = norm("norm2");
  if (ShiftsFeedForward(config)) layer.shift.emplace(vector("ffn.shift"));
  AFT_RETURN_IF_ERROR(load(format, "ffn.up", layer.up));
  AFT_RETURN_IF_ERROR(load(ActivatedNumber(config, format), "ffn.down", layer.down));
  if (config.feed_forward == FeedForwardKind::kGatedChannelMix) {
    AFT_RETURN_IF_ERROR(load(format, "ffn.gate", layer.gate));
  }
  layer.up_bias = vector("ffn.up.bias");
  if (activates_in_product && layer.up_bias.defined()) {
    layer.up_bias = layer.up_bias.to(ScalarTypeOf(ActivationFormat(format)));
  }
  layer.down_bias = vector("ffn.down.bias");
  return layer;
}

std::vector<StateSpec> GpuLayer::state_specs(const NetworkConfig& config) const {
  std::vector<StateSpec> specs = ShiftStateSpecs(config);
  specs.insert(specs.begin(), mixer->state_spec());
  return specs;
}

}  // namespace aft
