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
// their weights and the activations of one step. It may also be a bare mixer: a single layer with
// nothing around it, whose texts are vectors. CpuNetwork and GpuNetwork (model/gpu) are the two
// implementations. The functions below define, once for both, the parts of a step and their order.
//
// Activations are dense matrices of one row per token: x [tokens, d], the residual stream, and
// mixed [tokens, hid], a mixer's output. Batch holds the rows of a step as arrays on the device,
// Texts holds whole texts. In a Batch, outputs[0 .. output_count) are the tokens whose logits are
// wanted, ascending (null: the first output_count tokens).
template <typename N>
concept Network = requires(N& network, const typename N::Batch& batch,
                           const typename N::Texts& texts, const std::vector<StateView>& states,
                           const int64_t* outputs, int64_t i) {
  { network.config() } -> std::same_as<const NetworkConfig&>;
  // x = embedding of the tokens. For texts of vectors, x = the vectors plus their positions.
  { network.Embed(batch) } -> std::same_as<absl::Status>;
  { network.Embed(texts) } -> std::same_as<absl::Status>;
  // The states that all layers keep of a sequence.
  { network.state_specs() } -> std::same_as<std::vector<StateSpec>>;
  // mixed = mixer(qkv(norm1(x))) of layer i. Mix advances the layer's states; Encode has no states.
  { network.Mix(i, batch, states) } -> std::same_as<absl::Status>;
  { network.Encode(i, texts) } -> std::same_as<absl::Status>;
  // In a layer whose feed-forward has a token shift (ShiftsFeedForward), x += out(mixed) and mixed
  // = norm2(x) for all tokens, which advances the shift's states; otherwise nothing.
  { network.ShiftFeedForward(i, batch, states) } -> std::same_as<absl::Status>;
  // Row j of x and mixed takes the values of row outputs[j]. After this only these rows are left.
  { network.Keep(outputs, i) } -> std::same_as<absl::Status>;
  // Ends layer i for the first rows: x += out(mixed), then, in a layer with a feed-forward, x +=
  // feed_forward(norm2(x)). Only the last part is left after ShiftFeedForward. For a bare mixer,
  // which has no norms, x = out(mixed).
  { network.Finish(i, i) } -> std::same_as<absl::Status>;
  // Computes what Logits and vectors read, for the first rows.
  { network.FinalNorm(i) } -> std::same_as<absl::Status>;
};

// Advances the sequences of `batch`. `states` are the parts that state_specs() describes. The
// caller can ask for logits afterwards.
template <Network N>
absl::Status ForwardStep(N& network, const typename N::Batch& batch,
                         const std::vector<StateView>& states) {
  const int64_t layers = network.config().n_layers;
  int64_t count = batch.tokens;
  if (count == 0) return absl::OkStatus();
  AFT_RETURN_IF_ERROR(network.Embed(batch));
  for (int64_t i = 0; i < layers; ++i) {
    AFT_RETURN_IF_ERROR(network.Mix(i, batch, states));
    AFT_RETURN_IF_ERROR(network.ShiftFeedForward(i, batch, states));
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

// Encodes whole texts. The caller can ask for the vectors of all tokens afterwards.
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
