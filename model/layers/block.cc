#include "model/layers/decoder_block.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/network/tensors.h"

namespace aft {

using kernels::Epilogue;

absl::StatusOr<DecoderBlock> DecoderBlock::Create(const NetworkConfig& config, int64_t index,
                                                  const WeightMap& tensors, WeightArena& arena) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const std::string mixer_prefix = prefix + "mixer.";
  MixerTables tables;
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, mixer_prefix)) tables[name.substr(mixer_prefix.size())] = tensor;
  }
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer,
                       MakeMixer(config.mixer, config.d_model, tables));
  return DecoderBlock(config, prefix, tensors, std::move(mixer), arena);
}

DecoderBlock::DecoderBlock(const NetworkConfig& config, const std::string& prefix,
                           const WeightMap& tensors, std::unique_ptr<Mixer> mixer,
                           WeightArena& arena)
    : d_model_(config.d_model),
      packed_width_(PackedWidth(config.mixer, config.d_model)),
      norm1_(tensors, prefix + "norm1", config.d_model, config.norm_eps, arena),
      qkv_(tensors, prefix + "mixer.qkv.weight", prefix + "mixer.qkv.bias", config.d_model,
           PackedWidth(config.mixer, config.d_model), arena),
      mixer_(std::move(mixer)),
      out_(tensors, prefix + "mixer.out.weight", prefix + "mixer.out.bias", config.d_model,
           config.d_model, arena),
      norm2_(tensors, prefix + "norm2", config.d_model, config.norm_eps, arena),
      up_(tensors, prefix + "ffn.up.weight", prefix + "ffn.up.bias", config.d_model, config.d_ff,
          arena),
      down_(tensors, prefix + "ffn.down.weight", prefix + "ffn.down.bias", config.d_ff,
            config.d_model, arena) {}

int64_t DecoderBlock::ArenaFloats(const NetworkConfig& config) {
  const int64_t d = config.d_model;
  return 2 * LayerNormLayer::ArenaFloats(d) + LinearLayer::ArenaFloats(d, 3 * d) +
         LinearLayer::ArenaFloats(d, d) + LinearLayer::ArenaFloats(d, config.d_ff) +
         LinearLayer::ArenaFloats(config.d_ff, d);
}

int64_t DecoderBlock::WideWidth(const NetworkConfig& config) {
  return std::max(3 * config.d_model, config.d_ff);
}

void DecoderBlock::Mix(const float* x, const RaggedBatch& batch, StateView state, float* mixed,
                       float* wide, const Workspace& workspace) const {
  const int64_t tokens = batch.offset[batch.rows];
  norm1_.Forward(x, tokens, mixed, *workspace.executor);
  qkv_.Forward(mixed, tokens, wide, Epilogue::kNone, *workspace.executor);
  mixer_->Forward({wide, packed_width_}, batch, state, {mixed, d_model_}, workspace);
}

void DecoderBlock::Finish(float* x, float* mixed, int64_t tokens, float* wide,
                          const Workspace& workspace) const {
  out_.Forward(mixed, tokens, x, Epilogue::kAdd, *workspace.executor);
  norm2_.Forward(x, tokens, mixed, *workspace.executor);
  up_.Forward(mixed, tokens, wide, Epilogue::kGeluTanh, *workspace.executor);
  down_.Forward(wide, tokens, x, Epilogue::kAdd, *workspace.executor);
}

}  // namespace aft
