#ifndef AFT_MODEL_LAYERS_BLOCK_H_
#define AFT_MODEL_LAYERS_BLOCK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/layers/feed_forward.h"
#include "model/layers/layer_norm.h"
#include "model/layers/mixer_layer.h"

namespace aft {

// One pre-norm layer:
//
//   x += out(mixer(qkv(norm1(x))))
//   x += feed_forward(norm2(x))
//
// Immutable and thread-safe.
class Block {
 public:
  // Packs the tensors "layers.<index>.*" into `arena`. REQUIRES: they passed CheckTensors.
  static absl::StatusOr<Block> Create(const NetworkConfig& config, int64_t index,
                                      const WeightMap& tensors, const MixerOptions& options,
                                      WeightArena& arena);

  const Mixer& mixer() const { return mixer_.mixer(); }

  // What the layer's parts keep of a sequence, the mixer first; the parts of a state pool.
  std::vector<StateSpec> state_specs() const { return {mixer().state_spec()}; }

  // The first half up to the mixer's output; advances its state, the first of state_specs().
  //   x [N, d] in; mixed [N, hid] out, with room for [N, d]; wide [N, PackedWidth()] workspace
  void Mix(const float* x, const RaggedBatch& batch, StateView state, float* mixed, float* wide,
           const Workspace& workspace) const;

  // The same for whole sequences, without state.
  void Encode(const float* x, const SequenceBatch& batch, float* mixed, float* wide,
              const Workspace& workspace) const;

  // The rest: x += out(mixed), then the feed-forward. Works on each token by itself, so a caller
  // may leave out tokens whose result nobody reads.
  //   x [tokens, d] in and out; mixed [tokens, hid] in, then workspace [tokens, d];
  //   wide [tokens, d_ff] workspace
  void Finish(float* x, float* mixed, int64_t tokens, float* wide,
              const Workspace& workspace) const;

 private:
  Block(const NetworkConfig& config, const std::string& prefix, const WeightMap& tensors,
        LayerNormLayer norm1, MixerLayer mixer, WeightArena& arena);

  LayerNormLayer norm1_;
  MixerLayer mixer_;
  LayerNormLayer norm2_;
  FeedForward feed_forward_;
};

}  // namespace aft

#endif  // AFT_MODEL_LAYERS_BLOCK_H_
