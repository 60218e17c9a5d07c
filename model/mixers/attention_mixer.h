#ifndef AFT_MODEL_MIXERS_ATTENTION_MIXER_H_
#define AFT_MODEL_MIXERS_ATTENTION_MIXER_H_

#include <memory>
#include <utility>

#include "model/kernels/attention.h"
#include "model/mixers/attention_tables.h"
#include "model/mixers/mixer.h"

namespace aft {

// Softmax attentions: dot product, cosine, additive, location-based and block-local. Formulas and
// sources: kernels::AttentionParams; state: kernels::AttentionStateLayout, for max_seq_len tokens
// (block-local without full_decode: two blocks).
class AttentionMixer : public Mixer {
 public:
  // INVALID_ARGUMENT when the state grows and options.max_seq_len is 0.
  static absl::StatusOr<std::unique_ptr<Mixer>> Create(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables,
                                                       const MixerOptions& options);

  StateSpec state_spec() const override;
  int64_t scratch_floats() const override { return kernels::AttentionScratchFloats(params_); }
  int64_t encode_scratch_floats(int64_t tokens) const override {
    return kernels::AttentionEncodeScratchFloats(params_, tokens);
  }
  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override;
  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override;

 private:
  explicit AttentionMixer(AttentionTables tables) : tables_(std::move(tables)) {}

  const AttentionTables tables_;
  const kernels::AttentionParams& params_ = tables_.params;
};

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_ATTENTION_MIXER_H_
