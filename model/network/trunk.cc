#include "model/network/trunk.h"

#include <utility>

#include "base/status_macros.h"
#include "model/network/check_tensors.h"

namespace aft {

int64_t Trunk::ArenaFloats(const NetworkConfig& config) {
  return Embedding::ArenaFloats(config) + config.n_layers * Block::ArenaFloats(config) +
         LayerNormLayer::ArenaFloats(config.d_model);
}

absl::StatusOr<Trunk> Trunk::Create(const NetworkConfig& config, const TensorMap& tensors,
                                    int64_t head_floats) {
  AFT_RETURN_IF_ERROR(CheckTensors(config, tensors));
  AFT_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                       AlignedBuffer::Create(ArenaFloats(config) + head_floats, "weights"));
  WeightArena arena(std::move(buffer));
  Embedding embedding(config, tensors, arena);
  const MixerOptions options = {config.max_seq_len};
  std::vector<Block> blocks;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    AFT_ASSIGN_OR_RETURN(Block block, Block::Create(config, i, tensors, options, arena));
    blocks.push_back(std::move(block));
  }
  LayerNormLayer norm(tensors, "norm", config.d_model, config.norm_eps, arena);
  return Trunk{std::move(arena), std::move(embedding), std::move(blocks), std::move(norm)};
}

}  // namespace aft
