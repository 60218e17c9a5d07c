#ifndef AFT_MODEL_CONFIG_TENSORS_H_
#define AFT_MODEL_CONFIG_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace aft {

// One tensor of a checkpoint: contiguous fp32, row-major.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// Columns of the packed input of a mixer of width `hid`, which are the rows of mixer.qkv.weight.
// With h = heads, a = score_width:
//
//   AFT-simple, AFT-local, AFT-full, block-local, dot product   q [hid], k [hid], v [hid]
//   AFT-conv     q [hid], k [h], v [hid]              one key per head
//   cosine       q [hid], k [hid], v [hid], b [h]     strength beta = softplus(b), per query
//   additive     q [h * a], k [h * a], v [hid]        the bias b of tanh(q + k + b) is q's
//   location     q [hid], v [hid]
int64_t PackedWidth(const MixerConfig& mixer, int64_t hid);

// Tables of a mixer, by their names below "layers.N.mixer.". With s = window, T = band_rows:
//
//   w.band [max(T, 1), s]       causal: column = t - t'            AFT-local with s > 0, kBand
//   w.band [max(T, 1), 2s - 1]  bidirectional: column = t - t' + s - 1
//   w.full [T, T]               [query, key]                       AFT-full, AFT-local, kFull
//   w.u, w.v [T, bias_rank]                                        AFT-full, AFT-local, kFactors
//   conv.w [h, s]               causal: column = t - t'; bidirectional: column 0 = earliest key,
//                               column (s - 1) / 2 = t' = t        AFT-conv
//   conv.w [h, s, s]            [head, key row, key column]        AFT-conv with grid
//   conv.gamma, conv.beta [h]                                      AFT-conv, reparameterized
//   score.v [h, a]                                                 additive
//   location.weight [T, hid]    row = position attended to         location
std::vector<TensorSpec> ExpectedMixerTables(const MixerConfig& mixer, int64_t hid);

// Every tensor of model.safetensors of a network with this config, in the order of the data flow;
// no others may be present. With V = vocab_size, d = d_model, F = d_ff, hid = MixerWidth():
//
//   embed.weight [V, d]
//   position.weight [position_rows, d]  only when position is learned
//   layers.N.norm1.{weight,bias} [d]
//   layers.N.mixer.qkv.weight [PackedWidth(), d]   layers.N.mixer.qkv.bias  only when qkv_bias
//   layers.N.mixer.<table>              ExpectedMixerTables
//   layers.N.mixer.out.weight [d, hid]  layers.N.mixer.out.bias [d]
//   layers.N.norm2.{weight,bias} [d]
//   layers.N.ffn.up.weight [F, d]       layers.N.ffn.up.bias [F]
//   layers.N.ffn.down.weight [d, F]     layers.N.ffn.down.bias [d]
//   norm.{weight,bias} [d]
//   head.weight [V, d]                  absent when tie_embeddings: embed.weight serves
//   head.bias [V]                       only when head_bias
//
// An encoder has no head. A kMixer checkpoint has only layers.0.mixer.*.
std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config);

}  // namespace aft

#endif  // AFT_MODEL_CONFIG_TENSORS_H_
