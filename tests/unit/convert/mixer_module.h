#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/layers/mixer_layer.h"
#include "model/network/activations.h"

namespace aft {

// A checkpoint of the architecture "mixer": one mixer between its projections, from vectors to
// vectors, as it is imported from a module of another package. Immutable and thread-safe; calls at
// the same time need different slots and workspaces.
class MixerModule {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED. `tensors` may be dropped afterwards.
  static absl::StatusOr<std::unique_ptr<MixerModule>> Create(const NetworkConfig& config,
                                                             const TensorMap& tensors);

  const NetworkConfig& config() const { return config_; }
  const Mixer& mixer() const { return layer_.mixer(); }  // its state and scratch

  // x [N, d] -> y [N, d], dense. Forward: as Mixer::Forward. Encode: as Mixer::Encode.
  void Forward(const float* x, const RaggedBatch& batch, StateView state, Activations& workspace,
               float* y) const;
  void Encode(const float* x, const SequenceBatch& batch, Activations& workspace, float* y) const;

 private:
  MixerModule(const NetworkConfig& config, WeightArena arena, MixerLayer layer)
      : config_(config), arena_(std::move(arena)), layer_(std::move(layer)) {}

  NetworkConfig config_;
  WeightArena arena_;
  MixerLayer layer_;
};

}  // namespace aft
