#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/train/forms/train_form.h"

namespace aft {

// State of B streams, one AftCarry per layer. Empty when the mixer cannot carry its state
// (CanCarry) or the network counts positions: every segment starts afresh.
using NetworkCarry = std::vector<AftCarry>;
NetworkCarry EmptyNetworkCarry(const NetworkConfig& config, int64_t batch);
// Empties the state of one stream.
void RestartStream(const NetworkConfig& config, int64_t stream, NetworkCarry& carry);

// A language model or a classifier in differentiable form: the same tensors, by the same names, as
// a checkpoint. Thread-compatible. REQUIRES: the network has a head.
class TrainNetwork {
 public:
  // Fresh weights: N(0, spread^2), projections into the residual stream divided by sqrt(2 L),
  // biases 0, norms 1; mixer tables see train_network.cc.
  TrainNetwork(NetworkConfig config, uint64_t seed, double spread = 0.02);

  struct Options {
    bool bf16 = true;        // operands of matrix products
    double dropout = 0.0;    // after each mixer and feed-forward; 0 outside training
    int64_t grid_width = 0;  // SequenceBatch::grid_width
  };

  // tokens [B, T] int64 -> logits [B, T, HeadRows()] fp32. `carry` may be null or empty: every
  // stream starts empty.
  at::Tensor Forward(const at::Tensor& tokens, NetworkCarry* carry, const Options& options) const;

  const NetworkConfig& config() const { return config_; }
  TensorMap& parameters() { return parameters_; }
  const TensorMap& parameters() const { return parameters_; }

 private:
  const at::Tensor& P(const std::string& name) const { return parameters_.at(name); }
  at::Tensor Embed(const at::Tensor& tokens) const;
  MixerTables Tables(const std::string& prefix) const;

  NetworkConfig config_;
  TensorMap parameters_;
};

}  // namespace aft
