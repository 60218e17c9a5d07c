#include "model/mixers/aft_mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace aft {

absl::StatusOr<std::unique_ptr<Mixer>> AftMixer::Create(const MixerConfig& config, int64_t hid,
                                                        const MixerTables& tables,
                                                        const MixerOptions& /*options*/) {
  std::unique_ptr<AftMixer> mixer(new AftMixer);
  kernels::AftParams& params = mixer->params_;
  params.hid = hid;
  params.window = config.kind == MixerKind::kAftLocal ? config.window : 0;
  params.prefix_block = config.prefix_block;
  if (params.window > 0) {
    params.band_rows = std::max<int64_t>(config.band_rows, 1);
    mixer->band_ = tables.at("w.band");
    params.band = mixer->band_.const_data_ptr<float>();
    params.wide_bias = std::any_of(params.band, params.band + mixer->band_.numel(),
                                   [](float w) { return std::abs(w) > kernels::kNarrowBias; });
  }
  return mixer;
}

StateSpec AftMixer::state_spec() const {
  const kernels::AftStateLayout layout{params_.hid, params_.window, params_.prefix_block};
  StateSpec spec;
  spec.floats = layout.Floats();
  spec.sections = {{"prefix", 0, layout.KRing()},
                   {"k_ring", layout.KRing(), layout.VRing() - layout.KRing()},
                   {"v_ring", layout.VRing(), layout.Floats() - layout.VRing()}};
  return spec;
}

void AftMixer::Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                       const Workspace& workspace) const {
  if (batch.rows == 0) return;
  // Exponentials per channel below which a second thread costs more than it brings: about 8 us.
  constexpr int64_t kWorkPerThread = 1024;
  const int64_t tokens_per_row = batch.offset[batch.rows] / batch.rows;
  const int64_t unit_work = (params_.window + 4) * std::max<int64_t>(tokens_per_row, 1);
  const int64_t grain = std::max<int64_t>(kWorkPerThread / unit_work, 1);
  workspace.executor->For(
      kernels::AftUnits(params_, batch.rows), grain, [&](int64_t begin, int64_t end, int thread) {
        kernels::AftForward(params_, batch, in.data, in.stride, state.base, state.slot_stride,
                            out.data, out.stride,
                            workspace.scratch + thread * workspace.scratch_stride, begin, end);
      });
}

int64_t AftMixer::encode_scratch_floats(int64_t /*tokens*/) const { return scratch_floats(); }

void AftMixer::Encode(PackedIn /*in*/, const SequenceBatch& /*batch*/, MixerOut /*out*/,
                      const Workspace& /*workspace*/) const {
  AFT_CHECK(false);
}

}  // namespace aft
