#include "model/layers/block.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<Block> Block::Create(const NetworkConfig& config, int64_t index,
                                    const WeightMap& tensors, const MixerOptions& options,
                                    WeightArena& arena) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  // The arena is filled in the order in which a step reads it.
  LayerNormLayer norm1(tensors, prefix + "norm1", config.d_model, config.norm_eps, arena);
  AFT_ASSIGN_OR_RETURN(MixerLayer mixer,
                       MixerLayer::Create(config, index, tensors, options, arena));
  return Block(config, prefix, tensors, std::move(norm1), std::move(mixer), arena);
}

Block::Block(const NetworkConfig& config, const std::string& prefix, const WeightMap& tensors,
             LayerNormLayer norm1, MixerLayer mixer, WeightArena& arena)
    : norm1_(std::move(norm1)),
      mixer_(std::move(mixer)),
      norm2_(tensors, prefix + "norm2", config.d_model, config.norm_eps, arena),
      feed_forward_(config, prefix, tensors, arena) {}

void Block::Mix(const float* x, const RaggedBatch& batch, StateView state, float* mixed,
                float* wide, const Workspace& workspace) const {
  norm1_.Forward(x, batch.offset[batch.rows], mixed, *workspace.executor);
  mixer_.Forward(mixed, batch, state, wide, mixed, workspace);
}

void Block::Encode(const float* x, const SequenceBatch& batch, float* mixed, float* wide,
                   const Workspace& workspace) const {
  norm1_.Forward(x, batch.offset[batch.sequences], mixed, *workspace.executor);
  mixer_.Encode(mixed, batch, wide, mixed, workspace);
}

void Block::Finish(float* x, float* mixed, int64_t tokens, float* wide,
                   const Workspace& workspace) const {
  mixer_.Output(mixed, tokens, x, kernels::Epilogue::Add(), workspace);
  norm2_.Forward(x, tokens, mixed, *workspace.executor);
  feed_forward_.Forward(mixed, tokens, wide, x, *workspace.executor);
}

}  // namespace aft
