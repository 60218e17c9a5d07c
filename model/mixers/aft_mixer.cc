#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/kernels/aft/aft.h"
#include "model/mixers/families.h"
#include "model/mixers/pairs.h"
#include "model/mixers/tables.h"

namespace aft {
namespace {

kernels::AftBias ToBias(const MixerConfig& config, const AftBand& band) {
  if (band.window > 0) {
    return {band.w.const_data_ptr<float>(), band.w.size(0), band.window, config.causal};
  }
  if (config.causal) return {};
  // The bidirectional kernel needs a place for the current token between those before and after it.
  constexpr float kNone = 0;
  return {&kNone, 1, 1, /*only_past=*/false};
}

// Results never depend on how a sequence is cut.
class AftMixer : public Mixer {
 public:
  AftMixer(const MixerConfig& config, int64_t hid, const AftBand& band)
      : bias_(ToBias(config, band)), params_{hid, &bias_, config.prefix_block, config.ring} {}

  StateSpec state_spec() const override {
    return AftStateSpec(kernels::AftLayout(params_), kernels::AftSlotScratchFloats(params_));
  }
  int64_t table_bytes() const override {
    return static_cast<int64_t>(bias_.table.size() * sizeof(float));
  }
  int64_t scratch_floats() const override { return kernels::AftScratchFloats(params_); }
  int64_t encode_scratch_floats(int64_t tokens) const override {
    return std::max(kernels::AftEncodeScratchFloats(params_, tokens), PairScratchFloats(tokens));
  }

  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override {
    AFT_CHECK(bias_.causal);
    if (batch.rows == 0) return;
    workspace.executor->For(
        kernels::AftUnits(params_, batch.rows),
        Grain(batch.rows, batch.offset[batch.rows], workspace.executor->threads()),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::AftForward(params_, batch, in.data, in.stride, state, out.data, out.stride,
                              workspace.scratch + thread * workspace.scratch_stride, begin, end);
        });
  }

  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override {
    if (batch.sequences == 0) return;
    workspace.executor->For(
        kernels::AftUnits(params_, batch.sequences),
        Grain(batch.sequences, batch.offset[batch.sequences], workspace.executor->threads()),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::AftEncode(params_, batch, in.data, in.stride, out.data, out.stride,
                             workspace.scratch + thread * workspace.scratch_stride, begin, end);
        });
  }

  void EncodePairs(PackedIn queries, PackedIn keys, const SequenceBatch& batch, MixerOut out,
                   const Workspace& workspace) const override {
    const int64_t hid = params_.hid;
    const int64_t block = params_.prefix_block;
    const Number ring = bias_.window > 1 ? params_.ring : Number::kFp32;
    const auto sees = [&](int64_t t, int64_t key) {
      return (!bias_.causal || key <= t) && (block == 0 || key >= (t / block - 1) * block);
    };
    ForEachPairQuery(queries, keys, batch, hid, out, workspace, sees, [&](const PairQuery& query) {
      const float* const row = bias_.Row(query.t);
      for (int64_t i = 0; i < query.seen.count; ++i) {
        const int64_t later = query.seen.rows[i] - query.t;
        if (std::abs(later) >= bias_.window) continue;
        const float w = row[later + bias_.window - 1];
        query.biases[i] += bias_.wide ? w : std::log(w);
      }
      kernels::PairAft(query.keys + hid, query.keys + 2 * hid, query.stride, hid, ring, query.seen,
                       query.y);
      kernels::PairGate(query.packed, hid, query.y);
    });
  }

 private:
  // The least number of units per thread. With fewer, a second thread costs more than it saves.
  int64_t Grain(int64_t rows, int64_t tokens, int64_t threads) const {
    // Exponentials per channel that take about 3 us. A prompt's window costs multiply-adds instead.
    constexpr int64_t kWorkPerThread = 432;
    const int64_t tokens_per_row = std::max<int64_t>(tokens / rows, 1);
    const int64_t window = tokens_per_row > 1 ? params_.window() / 8 : params_.window();
    const int64_t least = std::max<int64_t>(kWorkPerThread / ((window + 4) * tokens_per_row), 1);
    // A decode step gives each thread one range, so that a state stays in the cache of one core.
    if (tokens > rows) return least;
    return std::max(least, kernels::AftUnits(params_, rows) / threads);
  }

  const kernels::AftBias bias_;
  const kernels::AftParams params_;  // points to bias_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeAftMixer(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables) {
  AFT_ASSIGN_OR_RETURN(const AftBand band, CheckedAftBand(config, tables));
  return std::make_unique<AftMixer>(config, hid, band);
}

}  // namespace aft
