#include "model/network/encoder.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace aft {

absl::StatusOr<std::unique_ptr<Encoder>> Encoder::Create(const NetworkConfig& config,
                                                         const TensorMap& tensors) {
  // Whole texts are never cut, so there is nothing to be invariant to.
  AFT_ASSIGN_OR_RETURN(Trunk trunk, Trunk::Create(config, tensors, 0));
  return std::unique_ptr<Encoder>(new Encoder(config, std::move(trunk)));
}

int64_t Encoder::scratch_floats(int64_t tokens) const {
  int64_t floats = 0;
  for (const Block& block : trunk_.blocks) {
    floats = std::max(floats, block.mixer().encode_scratch_floats(tokens));
  }
  return floats;
}

void Encoder::Forward(const SequenceBatch& batch, const int32_t* tokens,
                      Activations& workspace) const {
  for (int64_t i = 0; i < batch.sequences; ++i) {
    const int64_t first = batch.offset[i];
    trunk_.embedding.Forward(tokens + first, batch.offset[i + 1] - first, 0,
                             workspace.x + first * config_.d_model);
  }
  const int64_t count = batch.offset[batch.sequences];
  for (const Block& block : trunk_.blocks) {
    block.Encode(workspace.x, batch, workspace.mixed, workspace.wide, workspace.shared);
    block.Finish(workspace.x, workspace.mixed, count, workspace.wide, workspace.shared);
  }
  trunk_.norm.Forward(workspace.x, count, workspace.x, *workspace.shared.executor);
}

}  // namespace aft
