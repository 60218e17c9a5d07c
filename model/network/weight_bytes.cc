#include "model/network/weight_bytes.h"

#include "model/config/tensors.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/layers/embedding.h"
#include "model/state/aligned_buffer.h"  // RoundUpToLine

namespace aft {

WeightBytes CountWeightBytes(const NetworkConfig& config, Number format) {
  const int64_t d = config.d_model;
  const int64_t hid = MixerWidth(config);
  const auto vector = [](int64_t floats) {
    return RoundUpToLine(floats) * static_cast<int64_t>(sizeof(float));
  };
  const auto linear = [&](int64_t in, int64_t out) {
    return vector((kernels::PackedWeightBytes(in, out, format) + 3) / 4);
  };
  const int64_t norm = 2 * vector(d);
  WeightBytes bytes;
  const int64_t layer = linear(d, PackedWidth(config.mixer, hid)) + linear(hid, d);
  if (config.architecture == Architecture::kMixer) return {.products = layer};
  const int64_t feed_forward = norm + linear(d, config.d_ff) + linear(config.d_ff, d);
  bytes.products =
      config.n_layers * (layer + norm) + config.n_layers / config.feed_forward_every * feed_forward;
  if (!HasSecondNorm(config, config.n_layers - 1)) bytes.products -= norm;
  if (HasNormBehind(config)) bytes.products += norm;
  if (config.embedding_norm) bytes.products += norm;
  if (HeadRows(config) > 0) bytes.products += linear(d, HeadRows(config));
  if (!config.tie_embeddings) bytes.lookups = linear(d, config.vocab_size);
  bytes.lookups += vector(Embedding::PositionFloats(config));
  return bytes;
}

}  // namespace aft
