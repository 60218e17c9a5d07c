#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/kernels/ragged_batch.h"
#include "model/mixers/tables.h"
#include "model/mixers/workspace.h"
#include "model/state/state_pool.h"

namespace aft {

// Matrices on the model's device; rows are `stride` floats apart.
struct PackedIn {
  const float* data = nullptr;  // [N, PackedWidth()]
  int64_t stride = 0;
};
struct MixerOut {
  float* data = nullptr;  // [N, hid]
  int64_t stride = 0;
};

// Mixes tokens along time. It is the core of one layer, between the layer's projections (which
// model/layers owns). Immutable and thread-safe; concurrent calls need different slots and
// workspaces. Its differentiable form is TrainForm (model/train/forms/train_form.h).
class Mixer {
 public:
  virtual ~Mixer() = default;

  // The layout of the state that one sequence keeps between calls of Forward.
  virtual StateSpec state_spec() const = 0;

  // The bytes of the mixer's tables, folded into the form that its kernels read.
  virtual int64_t table_bytes() const = 0;

  // The floats of Workspace::scratch per thread that Forward needs.
  virtual int64_t scratch_floats() const = 0;

  // The floats of Workspace::scratch per thread that Encode needs for sequences of up to `tokens`.
  virtual int64_t encode_scratch_floats(int64_t tokens) const = 0;

  // Advances every row's sequence by its tokens and writes the outputs; see RaggedBatch. Prompt
  // chunks and single tokens may be mixed. `out` must not overlap `in`. The result of a token has
  // the same bits however its sequence is cut into rows, and whatever other rows are in the batch.
  // REQUIRES: the config is causal.
  virtual void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                       const Workspace& workspace) const = 0;

  // Computes the outputs of whole sequences, without state: bidirectional, or causal when the
  // config is. A sequence's results have the same bits whatever other sequences are in the batch.
  // REQUIRES: with 2-D filters batch.grid_width is above 0; sequences are no longer than the config
  // allows.
  virtual void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
                      const Workspace& workspace) const = 0;

  // Encode computed directly from the definition, with a score for every pair. It is for batches
  // with a mask of pairs or with keys of their own (SequenceBatch::by_pairs). `keys` are the packed
  // rows of the keys and values; they are `queries` if batch.key_offset is null. The scratch is
  // Encode's, for `tokens` of the longest sequence of queries or keys. REQUIRES: as Encode; with
  // batch.key_offset, that the config ties no key to a position (EncoderForms::free_lengths).
  virtual void EncodePairs(PackedIn queries, PackedIn keys, const SequenceBatch& batch,
                           MixerOut out, const Workspace& workspace) const = 0;
};

// The facts that a mixer must know in addition to its own config.
struct MixerOptions {
  // Tokens of the longest sequence; > 0 for mixers whose state grows: their slots have room for it.
  int64_t max_seq_len = 0;
};

// Makes the mixer that `config` names, of width `hid`. `tables` have their names below
// "layers.N.mixer.". DATA_LOSS when a table that ExpectedMixerTables (config/tensors.h) lists is
// missing or has another shape or type.
absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables,
                                                 const MixerOptions& options = {});

}  // namespace aft
