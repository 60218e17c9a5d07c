#ifndef AFT_MODEL_MIXERS_MIXER_H_
#define AFT_MODEL_MIXERS_MIXER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/kernels/ragged_batch.h"
#include "model/mixers/workspace.h"
#include "model/network/config.h"
#include "model/state/state_pool.h"

namespace aft {

// Matrices on the model's device; rows are `stride` floats apart.
struct PackedIn {
  const float* data = nullptr;  // [N, packed_width]
  int64_t stride = 0;
};
struct MixerOut {
  float* data = nullptr;  // [N, hid]
  int64_t stride = 0;
};

// Mixes tokens along time: the core of one layer, between its projections (model/layers owns
// those). Immutable and thread-safe; Forward calls at the same time need different slots and
// workspaces.
class Mixer {
 public:
  virtual ~Mixer() = default;

  // What one sequence keeps between calls.
  virtual StateSpec state_spec() const = 0;

  // Columns of the packed input: 3 * hid for AFT's q, k, v.
  virtual int64_t packed_width() const = 0;

  // Floats of Workspace::scratch per thread.
  virtual int64_t scratch_floats() const = 0;

  // Advances every row's sequence by its tokens and writes the gated outputs; see RaggedBatch.
  // Prompt chunks and single tokens may be mixed. A token's result is the same bits however its
  // sequence is cut into rows and whatever else is in the batch. `out` must not overlap `in`.
  virtual void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                       const Workspace& workspace) const = 0;

  // The same function of whole sequences that start at position 0, packed [B, T, packed_width] ->
  // [B, T, hid], made of differentiable LibTorch operators.
  virtual at::Tensor Train(const at::Tensor& packed) const = 0;
};

// A mixer's tables by name.
using MixerTables = std::map<std::string, at::Tensor>;

// Makes the mixer that `config` names. `tables` are under their names below
// "layers.N.mixer." (network/tensors.h), e.g. "w.band", already checked against the config.
absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_MIXER_H_
