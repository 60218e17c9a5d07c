#ifndef AFT_MODEL_MIXERS_AFT_MIXER_H_
#define AFT_MODEL_MIXERS_AFT_MIXER_H_

#include <memory>

#include "model/kernels/aft.h"
#include "model/mixers/mixer.h"

namespace aft {

// AFT-simple, AFT-local and AFT-full (arXiv 2105.14103), gated by a sigmoid, with prefix_block as
// in config/config.h. AFT-full is AFT-local with a window of band_rows: same kernel, same state
// (kernels::AftStateLayout).
class AftMixer : public Mixer {
 public:
  // `tables` are those that ExpectedMixerTables lists, checked. Results never depend on how a
  // sequence is cut, so that no option matters.
  static std::unique_ptr<Mixer> Create(const MixerConfig& config, int64_t hid,
                                       const MixerTables& tables);

  StateSpec state_spec() const override;
  int64_t scratch_floats() const override { return kernels::AftScratchFloats(params_); }
  int64_t encode_scratch_floats(int64_t tokens) const override {
    return kernels::AftEncodeScratchFloats(params_, tokens);
  }
  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override;
  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override;

 private:
  AftMixer(const MixerConfig& config, int64_t hid, const MixerTables& tables);

  // Units per thread below which a second one costs more than it brings.
  int64_t Grain(int64_t rows, int64_t tokens) const;

  const kernels::AftBias bias_;
  const kernels::AftParams params_;  // points to bias_
};

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_AFT_MIXER_H_
