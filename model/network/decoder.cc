#include "model/network/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace aft {
namespace {

int64_t WeightFloats(const NetworkConfig& config) {
  return RoundUpToLine(config.vocab_size * config.d_model) +
         config.n_layers * DecoderBlock::ArenaFloats(config) +
         LayerNormLayer::ArenaFloats(config.d_model) +
         LinearLayer::ArenaFloats(config.d_model, config.vocab_size);
}

void CopyRow(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t width) {
  std::memcpy(to + to_row * width, from + from_row * width,
              static_cast<size_t>(width) * sizeof(float));
}

}  // namespace

int64_t DecoderWorkspace::Floats(const NetworkConfig& config, int64_t max_tokens,
                                 int64_t scratch_floats, int threads) {
  return 2 * RoundUpToLine(max_tokens * config.d_model) +
         RoundUpToLine(max_tokens * DecoderBlock::WideWidth(config)) +
         threads * RoundUpToLine(scratch_floats);
}

absl::StatusOr<DecoderWorkspace> DecoderWorkspace::Create(const NetworkConfig& config,
                                                          int64_t max_tokens,
                                                          int64_t scratch_floats,
                                                          const Executor& executor) {
  AFT_ASSIGN_OR_RETURN(
      AlignedBuffer buffer,
      AlignedBuffer::Create(Floats(config, max_tokens, scratch_floats, executor.threads()),
                            "activations"));
  DecoderWorkspace workspace(std::move(buffer),
                             {&executor, nullptr, RoundUpToLine(scratch_floats)});
  workspace.x_ = workspace.buffer_.data();
  workspace.mixed_ = workspace.x_ + RoundUpToLine(max_tokens * config.d_model);
  workspace.wide_ = workspace.mixed_ + RoundUpToLine(max_tokens * config.d_model);
  workspace.shared_.scratch =
      workspace.wide_ + RoundUpToLine(max_tokens * DecoderBlock::WideWidth(config));
  return workspace;
}

int64_t Decoder::WeightBytes(const NetworkConfig& config) {
  return WeightFloats(config) * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const NetworkConfig& config,
                                                         const TensorMap& tensors) {
  AFT_RETURN_IF_ERROR(CheckTensors(config, tensors));
  AFT_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                       AlignedBuffer::Create(WeightFloats(config), "weights"));
  WeightArena arena(std::move(buffer));
  const int64_t embed_floats = config.vocab_size * config.d_model;
  float* embed = arena.Take(embed_floats);
  std::copy_n(TensorData(tensors, "embed.weight"), embed_floats, embed);
  std::vector<DecoderBlock> blocks;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    AFT_ASSIGN_OR_RETURN(DecoderBlock block, DecoderBlock::Create(config, i, tensors, arena));
    blocks.push_back(std::move(block));
  }
  LayerNormLayer norm(tensors, "norm", config.d_model, config.norm_eps, arena);
  // A tied head is packed a second time: a gather and a product want different layouts.
  LinearLayer head(tensors, config.tie_embeddings ? "embed.weight" : "head.weight", "head.bias",
                   config.d_model, config.vocab_size, arena);
  return std::unique_ptr<Decoder>(new Decoder(config, std::move(arena), embed, std::move(blocks),
                                              std::move(norm), std::move(head)));
}

Decoder::Decoder(const NetworkConfig& config, WeightArena arena, const float* embed,
                 std::vector<DecoderBlock> blocks, LayerNormLayer norm, LinearLayer head)
    : config_(config),
      arena_(std::move(arena)),
      embed_(embed),
      blocks_(std::move(blocks)),
      norm_(std::move(norm)),
      head_(std::move(head)) {}

std::vector<StateSpec> Decoder::state_specs() const {
  std::vector<StateSpec> specs;
  for (const DecoderBlock& block : blocks_) specs.push_back(block.mixer().state_spec());
  return specs;
}

int64_t Decoder::scratch_floats() const {
  int64_t floats = 0;
  for (const DecoderBlock& block : blocks_) {
    floats = std::max(floats, block.mixer().scratch_floats());
  }
  return floats;
}

void Decoder::Forward(const DecoderBatch& batch, StatePool& states, DecoderWorkspace& workspace,
                      float* logits) const {
  const int64_t d = config_.d_model;
  float* x = workspace.x_;
  float* mixed = workspace.mixed_;
  int64_t tokens = batch.rows.offset[batch.rows.rows];
  for (int64_t i = 0; i < tokens; ++i) CopyRow(embed_, batch.tokens[i], x, i, d);

  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].Mix(x, batch.rows, states.layer(static_cast<int64_t>(i)), mixed, workspace.wide_,
                   workspace.shared_);
    if (i + 1 == blocks_.size()) {
      // All states are advanced: from here on only tokens whose logits are wanted matter. They move
      // forward only, so the copies do not overwrite each other.
      for (int64_t o = 0; o < batch.output_count; ++o) {
        if (batch.outputs[o] == o) continue;
        CopyRow(x, batch.outputs[o], x, o, d);
        CopyRow(mixed, batch.outputs[o], mixed, o, d);
      }
      tokens = batch.output_count;
    }
    blocks_[i].Finish(x, mixed, tokens, workspace.wide_, workspace.shared_);
  }
  if (tokens == 0) return;
  norm_.Forward(x, tokens, x, *workspace.shared_.executor);
  head_.Forward(x, tokens, logits, kernels::Epilogue::kNone, *workspace.shared_.executor);
}

}  // namespace aft
