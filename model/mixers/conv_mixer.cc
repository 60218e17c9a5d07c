#include "model/mixers/conv_mixer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/mixers/conv_filter.h"
#include "model/mixers/state_specs.h"

namespace aft {
namespace {

float ExpOrZero(double x) {
  const double e = std::exp(x);
  return e < double{std::numeric_limits<float>::min()} ? 0.0F : static_cast<float>(e);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> ConvMixer::Create(const MixerConfig& config, int64_t hid,
                                                         const MixerTables& tables) {
  AFT_ASSIGN_OR_RETURN(const ConvFilter filter, FoldConvFilter(config, tables));
  const int64_t heads = filter.heads;
  const int64_t taps = filter.taps;

  std::unique_ptr<ConvMixer> mixer(new ConvMixer(config.causal));
  const auto floats = static_cast<size_t>(taps * heads + kernels::kConvPad);
  mixer->filter_.resize(floats);
  mixer->weight_.resize(floats);
  mixer->outside_.resize(static_cast<size_t>(heads + kernels::kConvPad));
  for (int64_t head = 0; head < heads; ++head) {
    double rise = 0;
    for (int64_t j = 0; j < taps; ++j) {
      rise = std::max(rise, filter.w[static_cast<size_t>(j * heads + head)]);
    }
    mixer->outside_[static_cast<size_t>(head)] = ExpOrZero(-rise);
    for (int64_t j = 0; j < taps; ++j) {
      const auto at = static_cast<size_t>(j * heads + head);
      mixer->filter_[at] = static_cast<float>(filter.w[at]);
      mixer->weight_[at] = ExpOrZero(filter.w[at] - rise);
    }
  }
  mixer->causal_ = {hid, heads, config.window, mixer->filter_.data(), filter.wide, config.ring};
  mixer->both_ways_ = {hid,
                       heads,
                       config.window,
                       config.grid,
                       mixer->filter_.data(),
                       mixer->weight_.data(),
                       mixer->outside_.data()};
  return mixer;
}

StateSpec ConvMixer::state_spec() const { return ConvStateSpec(kernels::ConvStateLayout(causal_)); }

// Units that are worth a thread: 2048 taps of a tile are some 10 us.
int64_t ConvMixer::Grain(int64_t tokens, int64_t rows) const {
  constexpr int64_t kWorkPerThread = 2048;
  const int64_t tiles = std::max<int64_t>(causal_.head_width() / kernels::kConvTile, 1);
  const int64_t taps = causal_.taps * (both_ways_.grid ? causal_.taps : 1);
  const int64_t work = (taps + 4) * tiles * std::max<int64_t>(tokens / rows, 1);
  return std::max<int64_t>(kWorkPerThread / work, 1);
}

void ConvMixer::Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                        const Workspace& workspace) const {
  AFT_CHECK(is_causal_);
  if (batch.rows == 0) return;
  const int64_t units = kernels::ConvUnits(causal_.hid, causal_.heads, batch.rows);
  workspace.executor->For(units, Grain(batch.offset[batch.rows], batch.rows),
                          [&](int64_t begin, int64_t end, int thread) {
                            kernels::ConvForward(
                                causal_, batch, in.data, in.stride, nullptr, state.base,
                                state.slot_stride, out.data, out.stride,
                                workspace.scratch + thread * workspace.scratch_stride, begin, end);
                          });
}

int64_t ConvMixer::encode_scratch_floats(int64_t tokens) const {
  if (!is_causal_) return kernels::ConvEncodeScratchFloats(both_ways_, tokens);
  return scratch_floats() + kernels::ConvStateLayout(causal_).Floats();
}

void ConvMixer::Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
                       const Workspace& workspace) const {
  AFT_CHECK(!both_ways_.grid || batch.grid_width > 0);
  if (batch.sequences == 0) return;
  const int64_t per_sequence = kernels::ConvUnits(causal_.hid, causal_.heads, 1);
  workspace.executor->For(
      batch.sequences * per_sequence, Grain(batch.offset[batch.sequences], batch.sequences),
      [&](int64_t begin, int64_t end, int thread) {
        float* scratch = workspace.scratch + thread * workspace.scratch_stride;
        if (!is_causal_) {
          kernels::ConvEncode(both_ways_, batch, in.data, in.stride, out.data, out.stride, scratch,
                              begin, end);
          return;
        }
        // Forward from position 0, with a state of this thread that nobody sees again.
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t first = batch.offset[unit / per_sequence];
          const int64_t offset[] = {0, batch.offset[unit / per_sequence + 1] - first};
          const int32_t slot = 0;
          const int64_t position = 0;
          kernels::ConvForward(causal_, {1, &slot, &position, offset}, in.data + first * in.stride,
                               in.stride, batch.mask == nullptr ? nullptr : batch.mask + first,
                               scratch + scratch_floats(), 0, out.data + first * out.stride,
                               out.stride, scratch, unit % per_sequence, unit % per_sequence + 1);
        }
      });
}

}  // namespace aft
