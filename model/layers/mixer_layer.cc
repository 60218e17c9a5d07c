#include "model/layers/mixer_layer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"

namespace aft {

using kernels::Epilogue;

absl::StatusOr<MixerLayer> MixerLayer::Create(const NetworkConfig& config, int64_t index,
                                              const WeightMap& tensors, const MixerOptions& options,
                                              WeightArena& arena) {
  const std::string prefix = absl::StrCat("layers.", index, ".mixer.");
  MixerTables tables;
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, prefix)) tables[name.substr(prefix.size())] = tensor;
  }
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer,
                       MakeMixer(config.mixer, MixerWidth(config), tables, options));
  return MixerLayer(config, prefix, tensors, std::move(mixer), arena);
}

MixerLayer::MixerLayer(const NetworkConfig& config, const std::string& prefix,
                       const WeightMap& tensors, std::unique_ptr<Mixer> mixer, WeightArena& arena)
    : packed_width_(PackedWidth(config.mixer, MixerWidth(config))),
      hid_(MixerWidth(config)),
      qkv_(tensors, prefix + "qkv.weight", config.qkv_bias ? prefix + "qkv.bias" : "",
           config.d_model, packed_width_, arena),
      mixer_(std::move(mixer)),
      out_(tensors, prefix + "out.weight", prefix + "out.bias", hid_, config.d_model, arena) {}

void MixerLayer::Forward(const float* x, const RaggedBatch& batch, StateView state, float* wide,
                         float* mixed, const Workspace& workspace) const {
  qkv_.Forward(x, batch.offset[batch.rows], wide, Activation::kNone, workspace);
  mixer_->Forward({wide, packed_width_}, batch, state, {mixed, hid_}, workspace);
}

void MixerLayer::Encode(const float* x, const SequenceBatch& batch, float* wide, float* mixed,
                        const Workspace& workspace) const {
  qkv_.Forward(x, batch.offset[batch.sequences], wide, Activation::kNone, workspace);
  mixer_->Encode({wide, packed_width_}, batch, {mixed, hid_}, workspace);
}

void MixerLayer::Output(const float* mixed, int64_t tokens, float* y, Epilogue epilogue,
                        const Workspace& workspace) const {
  out_.Forward(mixed, tokens, y, epilogue, workspace);
}

}  // namespace aft
