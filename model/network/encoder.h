#ifndef AFT_MODEL_NETWORK_ENCODER_H_
#define AFT_MODEL_NETWORK_ENCODER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/network/activations.h"
#include "model/network/trunk.h"

namespace aft {

// The encoder: embedding, blocks, final norm; whole texts to vectors. Owns the packed weights.
// Immutable and thread-safe; calls at the same time need different workspaces.
class Encoder {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED. `tensors` may be dropped afterwards.
  static absl::StatusOr<std::unique_ptr<Encoder>> Create(const NetworkConfig& config,
                                                         const TensorMap& tensors);

  const NetworkConfig& config() const { return config_; }
  int64_t weight_bytes() const { return trunk_.arena.bytes(); }

  // Largest scratch that any mixer asks for, per thread, for sequences of up to `tokens`.
  int64_t scratch_floats(int64_t tokens) const;

  // The vectors of all tokens are left in workspace.x [N, d]. A sequence's are the same bits
  // whatever else is in the batch. tokens [N]: ids, below vocab_size.
  void Forward(const SequenceBatch& batch, const int32_t* tokens, Activations& workspace) const;

 private:
  Encoder(const NetworkConfig& config, Trunk trunk) : config_(config), trunk_(std::move(trunk)) {}

  NetworkConfig config_;
  Trunk trunk_;
};

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_ENCODER_H_
