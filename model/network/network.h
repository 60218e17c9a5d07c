#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "model/state/state_pool.h"

namespace aft {

// A network on one device: embedding, layers, final norm and, for language models, the head, with
// their weights and the activations of one step; or a mixer by itself, one layer that is nothing
// else, whose texts are vectors. CpuNetwork and GpuNetwork (model/gpu) are the two;
// what a step consists of, and in which order, is below, once for both.
//
// Activations are dense matrices of one row a token: x [tokens, d], the residual stream, and mixed
// [tokens, hid], a mixer's output. Batch holds the rows of a step as arrays on the device, Texts
// whole texts; of a Batch, outputs[0 .. output_count) are the tokens whose logits are wanted,
// ascending (null: the first output_count tokens).
template <typename N>
concept Network = requires(N& network, const typename N::Batch& batch,
                           const typename N::Texts& texts, const std::vector<StateView>& states,
                           const int64_t* outputs, int64_t i) {
  { network.config() } -> std::same_as<const NetworkConfig&>;
  // x = embedding of the tokens; of vectors, they and their positions.
  { network.Embed(batch) } -> std::same_as<absl::Status>;
  { network.Embed(texts) } -> std::same_as<absl::Status>;
  // What the parts of all layers keep of a sequence.
  { network.state_specs() } -> std::same_as<std::vector<StateSpec>>;
  // mixed = mixer(qkv(norm1(x))) of layer i; Mix advances its states, Encode has none.
  { network.Mix(i, batch, states) } -> std::same_as<absl::Status>;
  { network.Encode(i, texts) } -> std::same_as<absl::Status>;
  // Row j of x and mixed becomes row outputs[j]; from here on the others are gone.
  { network.Keep(outputs, i) } -> std::same_as<absl::Status>;
  // x += out(mixed), then, of a layer with a feed-forward, x += feed_forward(norm2(x)), of layer i
  // and the first rows; x =
  // out(mixed) of a mixer by itself, which has no norms.
  { network.Finish(i, i) } -> std::same_as<absl::Status>;
  // What Logits and vectors read, of the first rows.
  { network.FinalNorm(i) } -> std::same_as<absl::Status>;
};

// Advances the sequences of `batch`, whose states are those of state_specs(). Logits can be asked
// for afterwards.
template <Network N>
absl::Status ForwardStep(N& network, const typename N::Batch& batch,
                         const std::vector<StateView>& states) {
  const int64_t layers = network.config().n_layers;
  int64_t count = batch.tokens;
  if (count == 0) return absl::OkStatus();
  AFT_RETURN_IF_ERROR(network.Embed(batch));
  for (int64_t i = 0; i < layers; ++i) {
    AFT_RETURN_IF_ERROR(network.Mix(i, batch, states));
    if (i + 1 == layers) {
      // All states are advanced: from here on only tokens whose logits are wanted matter.
      count = batch.output_count;
      if (count == 0) return absl::OkStatus();
      if (batch.outputs != nullptr) AFT_RETURN_IF_ERROR(network.Keep(batch.outputs, count));
    }
    AFT_RETURN_IF_ERROR(network.Finish(i, count));
  }
  return network.FinalNorm(count);
}

// Encodes whole texts. The vectors of all tokens can be asked for afterwards.
template <Network N>
absl::Status ForwardTexts(N& network, const typename N::Texts& texts) {
  if (texts.tokens == 0) return absl::OkStatus();
  AFT_RETURN_IF_ERROR(network.Embed(texts));
  for (int64_t i = 0; i < network.config().n_layers; ++i) {
    AFT_RETURN_IF_ERROR(network.Encode(i, texts));
    AFT_RETURN_IF_ERROR(network.Finish(i, texts.tokens));
  }
  return network.FinalNorm(texts.tokens);
}

}  // namespace aft
