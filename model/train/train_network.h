#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/train/forms/train_form.h"
#include "model/train/train_config.h"

namespace aft {

// The state of B streams in one layer.
struct LayerCarry {
  MixerCarry mixer;
  // With token shift, the last vector before the mixer and before the feed-forward; [B, d].
  at::Tensor shift, feed_forward_shift;
};

// The tensors of a layer's state that exist, by name.
std::vector<std::pair<const char*, at::Tensor*>> CarryTensors(LayerCarry& carry);

// The state of B streams in every layer. It is empty when the mixer cannot carry its state
// (CanCarry) or the network has positions; every segment then starts without a state.
using NetworkCarry = std::vector<LayerCarry>;
NetworkCarry EmptyNetworkCarry(const NetworkConfig& config, int64_t batch);
// Empties the state of one stream.
void RestartStream(const NetworkConfig& config, int64_t stream, NetworkCarry& carry);

// Shares of numbers that are zeroed at random; the others are scaled up. 0 outside training. The
// fields are those of TrainConfig.
struct Dropouts {
  double output = 0;  // TrainConfig::dropout
  double embedding = 0;
  double feed_forward = 0;
  double attention = 0;
};

inline Dropouts DropoutsOf(const TrainConfig& config) {
  return {config.dropout, config.embedding_dropout, config.feed_forward_dropout,
          config.attention_dropout};
}

// A language model or an encoder in differentiable form. It has the same tensors, by the same
// names, as a checkpoint. Thread-compatible. REQUIRES: the architecture is not kMixer.
class TrainNetwork {
 public:
  TrainNetwork(NetworkConfig config, TensorMap parameters);

  struct Options {
    bool bf16 = true;        // operands of matrix products
    Dropouts dropouts = {};  // draws from LibTorch's global generator
    int64_t grid_width = 0;  // SequenceBatch::grid_width
    at::Tensor mask = {};    // [B, T] or undefined: SequenceBatch::mask
  };

  // tokens [B, T] int64 -> logits [B, T, HeadRows()] fp32, or without a head the vectors [B, T, d].
  // When `carry` is null or empty, every stream starts with an empty state.
  at::Tensor Forward(const at::Tensor& tokens, NetworkCarry* carry, const Options& options) const;

  const NetworkConfig& config() const { return config_; }
  TensorMap& parameters() { return parameters_; }
  const TensorMap& parameters() const { return parameters_; }

 private:
  NetworkConfig config_;
  TensorMap parameters_;
};

}  // namespace aft
