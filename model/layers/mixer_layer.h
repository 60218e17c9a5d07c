#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/config/kinds.h"
#include "model/layers/linear.h"
#include "model/layers/shifted_projection.h"
#include "model/mixers/mixer.h"

namespace aft {

// A mixer between its projections: out(mixer(qkv(x))). hid = MixerWidth(). A kind with token shift
// has a ShiftedProjection in place of qkv. Immutable and thread-safe.
class MixerLayer {
 public:
  // Packs the tensors "layers.<index>.mixer.*" into `arena`. REQUIRES: they passed CheckTensors.
  static absl::StatusOr<MixerLayer> Create(const NetworkConfig& config, int64_t index,
                                           const WeightMap& tensors, const MixerOptions& options,
                                           WeightArena& arena);

  const Mixer& mixer() const { return *mixer_; }

  // These compute everything up to the mixer's output.
  //   x [N, d] in; wide [N, PackedWidth()] workspace; mixed [N, hid] out, may be x
  //   states: the mixer's state and, with token shift, that of the shift
  //   buffers: used only with token shift
  void Forward(const float* x, const RaggedBatch& batch, const StateView* states, float* wide,
               const ShiftBuffers& buffers, float* mixed, const Workspace& workspace) const;
  void Encode(const float* x, const SequenceBatch& batch, float* wide, float* mixed,
              const Workspace& workspace) const;

  // Encode for the case that queries, keys and values have vectors of their own: each part of the
  // packed input (KindSpec::packed) is projected from the vectors that it belongs to. wide [N,
  // PackedWidth()] has a row per query, followed by a row per key with batch.key_offset.
  struct Sources {
    // For each sequence, [tokens, d] dense: queries, keys, values. keys may be null if the mixer
    // has no keys.
    const float* const* queries;
    const float* const* keys;
    const float* const* values;
  };
  void EncodeSources(const Sources& sources, const SequenceBatch& batch, float* wide, float* mixed,
                     const Workspace& workspace) const;
  // Returns the number of floats that EncodeSources needs in the scratch of the first thread.
  static int64_t SourceScratchFloats(const NetworkConfig& config);

  // Computes what follows the mixer, for each token by itself: y = out(mixed), or y += out(mixed)
  // with Epilogue::Add().
  //   mixed [tokens, hid] in; y [tokens, d] out, may not be mixed
  void Output(const float* mixed, int64_t tokens, float* y, kernels::Epilogue epilogue,
              const Workspace& workspace) const;

 private:
  MixerLayer(const NetworkConfig& config, int64_t index, const std::string& prefix,
             const WeightMap& tensors, std::unique_ptr<Mixer> mixer, WeightArena& arena);

  const LinearLayer& qkv() const { return std::get<LinearLayer>(in_); }
  void Mix(const SequenceBatch& batch, const float* wide, float* mixed,
           const Workspace& workspace) const;
  void Project(const float* const* vectors, int64_t sequences, const int64_t* offset, int64_t first,
               int64_t columns, float* wide, const Workspace& workspace) const;

  std::vector<PackedPart> parts_;
  int64_t packed_width_;
  int64_t hid_;
  std::variant<LinearLayer, ShiftedProjection> in_;
  std::unique_ptr<Mixer> mixer_;
  LinearLayer out_;
};

}  // namespace aft
