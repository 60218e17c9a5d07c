#include "model/layers/feed_forward.h"

#include <algorithm>

#include "model/kernels/wkv/blend.h"

namespace aft {
namespace {

std::optional<TokenShift> ShiftOf(const NetworkConfig& config, const std::string& prefix,
                                  const WeightMap& tensors, WeightArena& arena) {
  if (!ShiftsFeedForward(config)) return std::nullopt;
  const int64_t parts = config.feed_forward == FeedForwardKind::kGatedChannelMix ? 2 : 1;
  return TokenShift(tensors, prefix + "ffn.shift", parts, config.d_model, arena);
}

std::optional<LinearLayer> GateOf(const NetworkConfig& config, const std::string& prefix,
                                  const WeightMap& tensors, WeightArena& arena) {
  if (config.feed_forward != FeedForwardKind::kGatedChannelMix) return std::nullopt;
  return LinearLayer(tensors, prefix + "ffn.gate.weight", "", config.d_model, config.d_model,
                     arena);
}

}  // namespace

FeedForward::FeedForward(const NetworkConfig& config, const std::string& prefix,
                         const WeightMap& tensors, WeightArena& arena)
    : width_(config.d_model),
      activation_(config.activation),
      shift_(ShiftOf(config, prefix, tensors, arena)),
      up_(tensors, prefix + "ffn.up.weight", shift_.has_value() ? "" : prefix + "ffn.up.bias",
          config.d_model, config.d_ff, arena),
      gate_(GateOf(config, prefix, tensors, arena)),
      down_(tensors, prefix + "ffn.down.weight", shift_.has_value() ? "" : prefix + "ffn.down.bias",
            config.d_ff, config.d_model, arena) {}

void FeedForward::Forward(const float* x, int64_t tokens, const ShiftBuffers& buffers, float* wide,
                          float* y, const Workspace& workspace) const {
  if (shift_.has_value()) {
    shift_->Mix(x, buffers.previous, tokens, buffers.inputs, *workspace.executor);
    x = buffers.inputs;
  }
  up_.Forward(x, tokens, wide, activation_, workspace);
  if (!gate_.has_value()) {
    down_.Forward(wide, tokens, y, kernels::Epilogue::Add(), workspace);
    return;
  }
  // Both buffers have been read.
  float* const down = buffers.inputs;
  float* const gate = buffers.previous;
  down_.Forward(wide, tokens, down, Activation::kNone, workspace);
  gate_->Forward(buffers.inputs + tokens * width_, tokens, gate, Activation::kNone, workspace);
  constexpr int64_t kExponentialsPerThread = 8192;
  workspace.executor->For(tokens * width_, kExponentialsPerThread,
                          [&](int64_t begin, int64_t end, int) {
                            kernels::AddGated(down + begin, gate + begin, end - begin, y + begin);
                          });
}

}  // namespace aft
