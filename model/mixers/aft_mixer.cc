#include "model/mixers/aft_mixer.h"

#include <algorithm>

#include "base/check.h"
#include "model/mixers/aft_band.h"
#include "model/mixers/state_specs.h"

namespace aft {

AftMixer::AftMixer(const MixerConfig& config, int64_t hid, const MixerTables& tables)
    : bias_(FoldAftBias(config, tables)), params_{hid, &bias_, config.prefix_block, config.ring} {}

std::unique_ptr<Mixer> AftMixer::Create(const MixerConfig& config, int64_t hid,
                                        const MixerTables& tables) {
  return std::unique_ptr<Mixer>(new AftMixer(config, hid, tables));
}

StateSpec AftMixer::state_spec() const { return AftStateSpec(kernels::AftLayout(params_)); }

int64_t AftMixer::Grain(int64_t rows, int64_t tokens) const {
  // Exponentials per channel that take about 8 us. A prompt's window costs multiply-adds instead.
  constexpr int64_t kWorkPerThread = 1024;
  const int64_t tokens_per_row = std::max<int64_t>(tokens / rows, 1);
  const int64_t window = tokens_per_row > 1 ? params_.window() / 8 : params_.window();
  return std::max<int64_t>(kWorkPerThread / ((window + 4) * tokens_per_row), 1);
}

void AftMixer::Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                       const Workspace& workspace) const {
  AFT_CHECK(bias_.causal);
  if (batch.rows == 0) return;
  workspace.executor->For(
      kernels::AftUnits(params_, batch.rows), Grain(batch.rows, batch.offset[batch.rows]),
      [&](int64_t begin, int64_t end, int thread) {
        kernels::AftForward(params_, batch, in.data, in.stride, state.base, state.slot_stride,
                            out.data, out.stride,
                            workspace.scratch + thread * workspace.scratch_stride, begin, end);
      });
}

void AftMixer::Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
                      const Workspace& workspace) const {
  if (batch.sequences == 0) return;
  workspace.executor->For(kernels::AftUnits(params_, batch.sequences),
                          Grain(batch.sequences, batch.offset[batch.sequences]),
                          [&](int64_t begin, int64_t end, int thread) {
                            kernels::AftEncode(
                                params_, batch, in.data, in.stride, out.data, out.stride,
                                workspace.scratch + thread * workspace.scratch_stride, begin, end);
                          });
}

}  // namespace aft
