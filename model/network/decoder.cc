#include "model/network/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace aft {
namespace {

// Row `from` of a matrix over row `to`.
void MoveRow(float* matrix, int64_t from, int64_t to, int64_t width) {
  std::memcpy(matrix + to * width, matrix + from * width,
              static_cast<size_t>(width) * sizeof(float));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const NetworkConfig& config,
                                                         const TensorMap& tensors) {
  AFT_ASSIGN_OR_RETURN(
      Trunk trunk,
      Trunk::Create(config, tensors, LinearLayer::ArenaFloats(config.d_model, config.vocab_size)));
  // A tied head is packed a second time: a gather and a product want different layouts.
  LinearLayer head(tensors, config.tie_embeddings ? "embed.weight" : "head.weight",
                   config.head_bias ? "head.bias" : "", config.d_model, config.vocab_size,
                   trunk.arena);
  return std::unique_ptr<Decoder>(
      new Decoder(config, NetworkFingerprint(config, tensors), std::move(trunk), std::move(head)));
}

Decoder::Decoder(const NetworkConfig& config, uint64_t fingerprint, Trunk trunk, LinearLayer head)
    : config_(config),
      fingerprint_(fingerprint),
      trunk_(std::move(trunk)),
      head_(std::move(head)) {}

std::vector<StateSpec> Decoder::state_specs() const {
  std::vector<StateSpec> specs;
  for (const Block& block : trunk_.blocks) specs.push_back(block.mixer().state_spec());
  return specs;
}

int64_t Decoder::scratch_floats() const {
  int64_t floats = 0;
  for (const Block& block : trunk_.blocks) {
    floats = std::max(floats, block.mixer().scratch_floats());
  }
  return floats;
}

void Decoder::Forward(const DecoderBatch& batch, StatePool& states, Activations& workspace) const {
  const RaggedBatch& rows = batch.rows;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t first = rows.offset[r];
    trunk_.embedding.Forward(batch.tokens + first, rows.offset[r + 1] - first, rows.position[r],
                             workspace.x + first * config_.d_model);
  }
  int64_t tokens = rows.offset[rows.rows];
  for (size_t i = 0; i < trunk_.blocks.size(); ++i) {
    const Block& block = trunk_.blocks[i];
    block.Mix(workspace.x, rows, states.layer(static_cast<int64_t>(i)), workspace.mixed,
              workspace.wide, workspace.shared);
    if (i + 1 == trunk_.blocks.size()) {
      // All states are advanced: from here on only tokens whose logits are wanted matter. They move
      // forward only, so the copies do not overwrite each other.
      for (int64_t o = 0; o < batch.output_count; ++o) {
        if (batch.outputs[o] == o) continue;
        MoveRow(workspace.x, batch.outputs[o], o, config_.d_model);
        MoveRow(workspace.mixed, batch.outputs[o], o, MixerWidth(config_));
      }
      tokens = batch.output_count;
    }
    block.Finish(workspace.x, workspace.mixed, tokens, workspace.wide, workspace.shared);
  }
  trunk_.norm.Forward(workspace.x, tokens, workspace.x, *workspace.shared.executor);
}

void Decoder::Logits(const Activations& workspace, int64_t first, int64_t count,
                     float* logits) const {
  head_.Forward(workspace.x + first * config_.d_model, count, logits, Activation::kNone,
                *workspace.shared.executor);
}

}  // namespace aft
