#ifndef AFT_MODEL_NETWORK_TRUNK_H_
#define AFT_MODEL_NETWORK_TRUNK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/layers/block.h"
#include "model/layers/embedding.h"

namespace aft {

// What language models and encoders share: the packed weights of embedding, blocks and final norm.
struct Trunk {
  // Leaves `head_floats` of the arena for a head. Errors: DATA_LOSS (CheckTensors),
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<Trunk> Create(const NetworkConfig& config, const TensorMap& tensors,
                                      int64_t head_floats);

  // Floats of the arena without the head.
  static int64_t ArenaFloats(const NetworkConfig& config);

  WeightArena arena;
  Embedding embedding;
  std::vector<Block> blocks;
  LayerNormLayer norm;
};

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_TRUNK_H_
