#ifndef AFT_MODEL_NETWORK_TENSORS_H_
#define AFT_MODEL_NETWORK_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/network/config.h"

namespace aft {

// One tensor of a checkpoint: contiguous fp32, row-major.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// Every tensor of model.safetensors of a network with this config, in the order of the data flow;
// no others may be present. With V = vocab_size, d = d_model, F = d_ff, s = mixer.window:
//
//   embed.weight [V, d]
//   layers.N.norm1.{weight,bias} [d]
//   layers.N.mixer.qkv.weight [3d, d]  rows: queries, keys, values   layers.N.mixer.qkv.bias [3d]
//   layers.N.mixer.w.band [max(band_rows, 1), s]  column = t - t'; only AFT-local with s > 0
//   layers.N.mixer.out.weight [d, d]   layers.N.mixer.out.bias [d]
//   layers.N.norm2.{weight,bias} [d]
//   layers.N.ffn.up.weight [F, d]      layers.N.ffn.up.bias [F]
//   layers.N.ffn.down.weight [d, F]    layers.N.ffn.down.bias [d]
//   norm.{weight,bias} [d]
//   head.weight [V, d]                 absent when tie_embeddings: embed.weight serves
//   head.bias [V]
std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config);

}  // namespace aft

#endif  // AFT_MODEL_NETWORK_TENSORS_H_
