#ifndef AFT_MODEL_LAYERS_DECODER_BLOCK_H_
#define AFT_MODEL_LAYERS_DECODER_BLOCK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/layers/layer_norm.h"
#include "model/layers/linear.h"
#include "model/mixers/mixer.h"
#include "model/network/config.h"

namespace aft {

// One pre-norm layer:
//
//   x += out(mixer(qkv(norm1(x))))
//   x += down(gelu(up(norm2(x))))
//
// Immutable and thread-safe.
class DecoderBlock {
 public:
  // Packs the tensors "layers.<index>.*" into `arena`. REQUIRES: they passed CheckTensors.
  static absl::StatusOr<DecoderBlock> Create(const NetworkConfig& config, int64_t index,
                                             const WeightMap& tensors, WeightArena& arena);

  static int64_t ArenaFloats(const NetworkConfig& config);

  // Columns of `wide` below.
  static int64_t WideWidth(const NetworkConfig& config);

  const Mixer& mixer() const { return *mixer_; }

  // The first half up to the mixer's output; advances the state.
  //   x [N, d] in; mixed [N, d] out; wide [N, WideWidth()] workspace
  void Mix(const float* x, const RaggedBatch& batch, StateView state, float* mixed, float* wide,
           const Workspace& workspace) const;

  // The rest: x += out(mixed), then the feed-forward. Works on each token by itself, so a caller
  // may leave out tokens whose result nobody reads.
  //   x, mixed [tokens, d] in and out (mixed is overwritten); wide [tokens, WideWidth()] workspace
  void Finish(float* x, float* mixed, int64_t tokens, float* wide,
              const Workspace& workspace) const;

 private:
  DecoderBlock(const NetworkConfig& config, const std::string& prefix, const WeightMap& tensors,
               std::unique_ptr<Mixer> mixer, WeightArena& arena);

  int64_t d_model_;
  int64_t packed_width_;
  LayerNormLayer norm1_;
  LinearLayer qkv_;
  std::unique_ptr<Mixer> mixer_;
  LinearLayer out_;
  LayerNormLayer norm2_;
  LinearLayer up_;
  LinearLayer down_;
};

}  // namespace aft

#endif  // AFT_MODEL_LAYERS_DECODER_BLOCK_H_
