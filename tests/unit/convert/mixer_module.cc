#include "tests/unit/convert/mixer_module.h"

#include "base/status_macros.h"
#include "model/network/check_tensors.h"
#include "model/network/weight_bytes.h"

namespace aft {

absl::StatusOr<std::unique_ptr<MixerModule>> MixerModule::Create(const NetworkConfig& config,
                                                                 const TensorMap& tensors) {
  AFT_RETURN_IF_ERROR(CheckTensors(config, tensors).status());
  AFT_ASSIGN_OR_RETURN(
      WeightArena arena,
      WeightArena::Create(CountWeightBytes(config, Number::kFp32).total(), Number::kFp32));
  AFT_ASSIGN_OR_RETURN(MixerLayer layer,
                       MixerLayer::Create(config, 0, tensors, {config.max_seq_len}, arena));
  return std::unique_ptr<MixerModule>(new MixerModule(config, std::move(arena), std::move(layer)));
}

void MixerModule::Forward(const float* x, const RaggedBatch& batch, StateView state,
                          Activations& workspace, float* y) const {
  layer_.Forward(x, batch, &state, workspace.wide, {}, workspace.mixed, workspace.shared);
  layer_.Output(workspace.mixed, batch.offset[batch.rows], y, Activation::kNone, workspace.shared);
}

void MixerModule::Encode(const float* x, const SequenceBatch& batch, Activations& workspace,
                         float* y) const {
  layer_.Encode(x, batch, workspace.wide, workspace.mixed, workspace.shared);
  layer_.Output(workspace.mixed, batch.offset[batch.sequences], y, Activation::kNone,
                workspace.shared);
}

}  // namespace aft
