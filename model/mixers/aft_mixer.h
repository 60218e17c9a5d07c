#ifndef AFT_MODEL_MIXERS_AFT_MIXER_H_
#define AFT_MODEL_MIXERS_AFT_MIXER_H_

#include <memory>

#include "model/kernels/aft.h"
#include "model/mixers/mixer.h"

namespace aft {

// AFT-simple and AFT-local (arXiv 2105.14103), causal, gated by a sigmoid, with prefix_block as in
// network/config.h. State: kernels::AftStateLayout.
class AftMixer : public Mixer {
 public:
  // Takes "w.band" [max(band_rows, 1), window] from `tables` when window > 0. DATA_LOSS when it is
  // missing or has another shape or type.
  static absl::StatusOr<std::unique_ptr<Mixer>> Create(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables,
                                                       const MixerOptions& options);

  StateSpec state_spec() const override;
  int64_t scratch_floats() const override { return kernels::AftScratchFloats(params_.window); }
  int64_t encode_scratch_floats(int64_t tokens) const override;
  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override;
  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override;

 private:
  AftMixer() = default;

  at::Tensor band_;            // contiguous fp32; undefined when the window is 0
  kernels::AftParams params_;  // points into band_
};

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_AFT_MIXER_H_
