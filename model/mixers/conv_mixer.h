#ifndef AFT_MODEL_MIXERS_CONV_MIXER_H_
#define AFT_MODEL_MIXERS_CONV_MIXER_H_

#include <memory>
#include <vector>

#include "model/kernels/conv.h"
#include "model/kernels/conv_encode.h"
#include "model/mixers/mixer.h"

namespace aft {

// AFT-conv (arXiv 2105.14103, eq. 6, 8), gated by a sigmoid: causal 1-D (our extension),
// bidirectional 1-D and 2-D. Its filter is folded into one table at load; no length limit. State:
// kernels::ConvStateLayout.
class ConvMixer : public Mixer {
 public:
  // Takes conv.w, and conv.gamma and conv.beta when reparameterized, from `tables`. DATA_LOSS when
  // the filter is not finite, or to be normalised but all taps of a head are equal.
  static absl::StatusOr<std::unique_ptr<Mixer>> Create(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables);

  StateSpec state_spec() const override;
  int64_t scratch_floats() const override { return kernels::ConvScratchFloats(causal_); }
  int64_t encode_scratch_floats(int64_t tokens) const override;
  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override;
  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override;

 private:
  explicit ConvMixer(bool is_causal) : is_causal_(is_causal) {}

  int64_t Grain(int64_t tokens, int64_t rows) const;

  const bool is_causal_;
  // [taps, h], each with kConvPad zeros behind it; the last two for Encode.
  std::vector<float> filter_;
  std::vector<float> weight_;
  std::vector<float> outside_;  // [h]
  kernels::ConvParams causal_;  // point into these
  kernels::ConvEncodeParams both_ways_;
};

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_CONV_MIXER_H_
