#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace aft {

// How a loaded model keeps a tensor, on every device.
enum class TensorRole {
  kMatrix,  // in the model's weight format: the weights of matrix products, and the embedding
  kTable,   // always fp32: biases, norms, rows by position, all tables of the mixers
};

// The values that a tensor has when training starts.
enum class TensorStart {
  kZeros,
  kOnes,
  kWeight,     // N(0, TrainConfig::weight_spread^2)
  kResidual,   // like kWeight, narrower the more layers add to the residual stream
  kNormal,     // N(0, spread^2)
  kOffsets,    // a bias by offset: column j is offset j
  kDiagonals,  // a bias by offset, stored as [query, key]
};

// One tensor of a checkpoint: contiguous fp32, row-major.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorStart start = TensorStart::kZeros;
  double spread = 0;
  TensorRole role = TensorRole::kTable;

  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

// Columns of the packed input of a mixer of width `hid`, which are the rows of mixer.qkv.weight:
// KindSpec::packed.
int64_t PackedWidth(const MixerConfig& mixer, int64_t hid);

// The tables of KindSpec::tables, with their names after "layers.N.mixer.".
std::vector<TensorSpec> ExpectedMixerTables(const MixerConfig& mixer, int64_t hid);

// Every tensor of model.safetensors of a network with this config, in the order of the data flow;
// no others may be present. With V = vocab_size, d = d_model, F = d_ff, hid = MixerWidth():
//
//   embed.weight [V, d]
//   position.weight [position_rows, d]  only when position is learned
//   embed_norm.{weight,bias} [d]        only when embedding_norm
//   layers.N.norm1.{weight,bias} [d]
//   layers.N.mixer.qkv.weight [PackedWidth(), d]   layers.N.mixer.qkv.bias  only when qkv_bias;
//                                       not with token_shift, see below
//   layers.N.mixer.<table>              ExpectedMixerTables
//   layers.N.mixer.out.weight [d, hid]  layers.N.mixer.out.bias [d]
//   layers.N.norm2.{weight,bias} [d]    this and ffn only in layers with HasFeedForward
//   layers.N.ffn.up.weight [F, d]       layers.N.ffn.up.bias [F]
//   layers.N.ffn.down.weight [d, F]     layers.N.ffn.down.bias [d]
//   norm.{weight,bias} [d]              only when HasNormBehind
//   head.weight [HeadRows(), d]         absent when tie_embeddings: embed.weight is used
//   head.bias [HeadRows()]              only when head_bias
//
// With KindSpec::token_shift the parts of the packed input have their own matrices instead of qkv,
// without biases except in low-rank parts; out has no bias either:
//
//   layers.N.mixer.shift [parts, d]     share of the token before in the input of each part
//   layers.N.mixer.P.weight [columns, d]
//   layers.N.mixer.P.down.weight [rank, d]  layers.N.mixer.P.up.weight [columns, rank]
//   layers.N.mixer.P.up.bias [columns]  these three in place of P.weight for parts with a rank
//   layers.N.mixer.v_gate.*             the same three, with value_rank in all layers but the first
//
// The feed-forward kinds with a token shift have no biases:
//
//   layers.N.ffn.shift [1, d], [2, d]   shares of up, and of gate
//   layers.N.ffn.gate.weight [d, d]     kGatedChannelMix only
//
// With post_norm and without final_norm the last layer has no norm2. An encoder has a head only
// with labels or vocabulary_head. A kMixer checkpoint has only layers.0.mixer.*.
std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config);

}  // namespace aft
