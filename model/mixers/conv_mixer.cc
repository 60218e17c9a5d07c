#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "c10/util/BFloat16.h"
#include "model/kernels/conv/conv.h"
#include "model/mixers/families.h"
#include "model/mixers/pairs.h"
#include "model/mixers/tables.h"

namespace aft {
namespace {

float ExpOrZero(double x) {
  const double e = std::exp(x);
  return e < double{std::numeric_limits<float>::min()} ? 0.0F : static_cast<float>(e);
}

// AFT-conv: causal 1-D (our extension), bidirectional 1-D and 2-D. The filter is folded into one
// table when the model is loaded. There is no length limit.
class ConvMixer : public Mixer {
 public:
  ConvMixer(const MixerConfig& config, int64_t hid, const ConvFilter& filter)
      : is_causal_(config.causal) {
    const int64_t heads = filter.heads;
    const int64_t taps = filter.taps;

    const auto floats = static_cast<size_t>(taps * heads + kernels::kConvPad);
    filter_.resize(floats);
    weight_.resize(floats);
    outside_.resize(static_cast<size_t>(heads + kernels::kConvPad));
    for (int64_t head = 0; head < heads; ++head) {
      double rise = 0;
      for (int64_t j = 0; j < taps; ++j) {
        rise = std::max(rise, filter.w[static_cast<size_t>(j * heads + head)]);
      }
      outside_[static_cast<size_t>(head)] = ExpOrZero(-rise);
      for (int64_t j = 0; j < taps; ++j) {
        const auto at = static_cast<size_t>(j * heads + head);
        filter_[at] = static_cast<float>(filter.w[at]);
        weight_[at] = ExpOrZero(filter.w[at] - rise);
      }
    }
    causal_ = {hid, heads, config.window, filter_.data(), filter.wide, config.ring};
    both_ways_ = {
        hid, heads, config.window, config.grid, filter_.data(), weight_.data(), outside_.data()};
  }

  StateSpec state_spec() const override { return ConvStateSpec(kernels::ConvStateLayout(causal_)); }
  int64_t table_bytes() const override {
    return static_cast<int64_t>((filter_.size() + weight_.size() + outside_.size()) *
                                sizeof(float));
  }
  int64_t scratch_floats() const override { return kernels::ConvScratchFloats(causal_); }

  int64_t encode_scratch_floats(int64_t tokens) const override {
    const int64_t floats = is_causal_
                               ? scratch_floats() + kernels::ConvStateLayout(causal_).Floats()
                               : kernels::ConvEncodeScratchFloats(both_ways_, tokens);
    return std::max(floats, PairScratchFloats(tokens));
  }

  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override {
    AFT_CHECK(is_causal_);
    if (batch.rows == 0) return;
    const int64_t units = kernels::ConvUnits(causal_.hid, causal_.heads, batch.rows);
    workspace.executor->For(
        units, Grain(batch.offset[batch.rows], batch.rows),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::ConvForward(causal_, batch, in.data, in.stride, nullptr, state.base,
                               state.slot_stride, out.data, out.stride,
                               workspace.scratch + thread * workspace.scratch_stride, begin, end);
        });
  }

  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override {
    AFT_CHECK(!both_ways_.grid || batch.grid_width > 0);
    if (batch.sequences == 0) return;
    const int64_t per_sequence = kernels::ConvUnits(causal_.hid, causal_.heads, 1);
    workspace.executor->For(
        batch.sequences * per_sequence, Grain(batch.offset[batch.sequences], batch.sequences),
        [&](int64_t begin, int64_t end, int thread) {
          float* scratch = workspace.scratch + thread * workspace.scratch_stride;
          if (!is_causal_) {
            kernels::ConvEncode(both_ways_, batch, in.data, in.stride, out.data, out.stride,
                                scratch, begin, end);
            return;
          }
          // Forward from position 0, with a state of this thread that is not used again.
          for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t first = batch.offset[unit / per_sequence];
            const int64_t offset[] = {0, batch.offset[unit / per_sequence + 1] - first};
            const int32_t slot = 0;
            const int64_t position = 0;
            kernels::ConvForward(causal_, {1, &slot, &position, offset},
                                 in.data + first * in.stride, in.stride,
                                 batch.mask == nullptr ? nullptr : batch.mask + first,
                                 scratch + scratch_floats(), 0, out.data + first * out.stride,
                                 out.stride, scratch, unit % per_sequence, unit % per_sequence + 1);
          }
        });
  }

  void EncodePairs(PackedIn queries, PackedIn keys, const SequenceBatch& batch, MixerOut out,
                   const Workspace& workspace) const override {
    AFT_CHECK(!both_ways_.grid || batch.grid_width > 0);
    const int64_t hid = causal_.hid;
    const int64_t heads = causal_.heads;
    const int64_t width = causal_.head_width();
    const bool rounds = causal_.ring == Number::kBf16;
    const auto sees = [&](int64_t t, int64_t key) { return !is_causal_ || key <= t; };
    ForEachPairQuery(queries, keys, batch, hid, out, workspace, sees, [&](const PairQuery& query) {
      for (int64_t head = 0; head < heads; ++head) {
        const float* const k = query.keys + hid + head;
        const auto key_of = [&](int64_t key) {
          const float x = k[key * query.stride];
          return rounds ? static_cast<float>(c10::BFloat16(x)) : x;
        };
        float max = -std::numeric_limits<float>::infinity();
        for (int64_t i = 0; i < query.seen.count; ++i) {
          max = std::max(max, key_of(query.seen.rows[i]));
        }
        for (int64_t i = 0; i < query.seen.count; ++i) {
          const int64_t key = query.seen.rows[i];
          const int64_t tap = Tap(query.t, key, batch.grid_width);
          const float bias = tap < 0 ? 0.0F : filter_[static_cast<size_t>(tap * heads + head)];
          query.scores[i] = (key_of(key) - max) + (bias + query.biases[i]);
        }
        kernels::PairMean(query.keys + hid + heads + head * width, query.stride, width,
                          causal_.ring, query.seen, query.scores, query.y + head * width);
      }
      kernels::PairGate(query.packed, hid, query.y);
    });
  }

 private:
  // The filter's tap for query t and a key, or -1 if the key is out of reach.
  int64_t Tap(int64_t t, int64_t key, int64_t columns) const {
    const int64_t taps = causal_.taps;
    const auto inside = [taps](int64_t tap) { return tap >= 0 && tap < taps; };
    const int64_t half = (taps - 1) / 2;
    if (!both_ways_.grid) {
      const int64_t tap = is_causal_ ? t - key : key - t + half;
      return inside(tap) ? tap : -1;
    }
    const int64_t row = key / columns - t / columns + half;
    const int64_t column = key % columns - t % columns + half;
    return inside(row) && inside(column) ? row * taps + column : -1;
  }

  // The number of units that is worth a thread: 2048 taps of a tile take some 10 us.
  int64_t Grain(int64_t tokens, int64_t rows) const {
    constexpr int64_t kWorkPerThread = 2048;
    const int64_t tiles = std::max<int64_t>(causal_.head_width() / kernels::kConvTile, 1);
    const int64_t taps = causal_.taps * (both_ways_.grid ? causal_.taps : 1);
    const int64_t work = (taps + 4) * tiles * std::max<int64_t>(tokens / rows, 1);
    return std::max<int64_t>(kWorkPerThread / work, 1);
  }

  const bool is_causal_;
  // [taps, h], each followed by kConvPad zeros. The last two are for Encode.
  std::vector<float> filter_;
  std::vector<float> weight_;
  std::vector<float> outside_;  // [h]
  kernels::ConvParams causal_;  // these two point to the vectors above
  kernels::ConvEncodeParams both_ways_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeConvMixer(const MixerConfig& config, int64_t hid,
                                                     const MixerTables& tables) {
  AFT_ASSIGN_OR_RETURN(const ConvFilter filter, FoldConvFilter(config, tables));
  return std::make_unique<ConvMixer>(config, hid, filter);
}

}  // namespace aft
