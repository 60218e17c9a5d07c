#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/kernels/attention/attention.h"
#include "model/mixers/families.h"
#include "model/mixers/pairs.h"

namespace aft {
namespace {

// The number of units that is worth a second thread: about 8 us of multiply-adds.
int64_t Grain(const kernels::AttentionParams& params, int64_t tokens, int64_t keys_per_token,
              int64_t units) {
  constexpr int64_t kWorkPerThread = 100000;
  const int64_t per_score = params.score == kernels::Score::kAdditive ? 16 : 1;
  const int64_t per_key = per_score * params.score_width + params.value_width;
  const int64_t work = tokens * std::max<int64_t>(keys_per_token, 1) * per_key * params.heads;
  return std::max<int64_t>(kWorkPerThread / std::max<int64_t>(work / units, 1), 1);
}

// State: kernels::AttentionStateLayout, for max_seq_len tokens (rings: two blocks).
class AttentionMixer : public Mixer {
 public:
  explicit AttentionMixer(AttentionTables tables) : tables_(std::move(tables)) {}

  StateSpec state_spec() const override { return AttentionStateSpec(params_); }
  int64_t table_bytes() const override {
    int64_t bytes = 0;
    for (const at::Tensor& table : {tables_.score_weight, tables_.position_keys}) {
      if (table.defined()) bytes += static_cast<int64_t>(table.nbytes());
    }
    return bytes;
  }
  int64_t scratch_floats() const override { return kernels::AttentionScratchFloats(params_); }
  int64_t encode_scratch_floats(int64_t tokens) const override {
    return std::max(kernels::AttentionEncodeScratchFloats(params_, tokens),
                    PairScratchFloats(tokens));
  }

  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override {
    if (batch.rows == 0) return;
    int64_t keys = 0;  // seen by all tokens of the batch together
    for (int64_t i = 0; i < batch.rows; ++i) {
      const int64_t length = batch.offset[i + 1] - batch.offset[i];
      AFT_CHECK(params_.ring() || batch.slot[i] < 0 ||
                batch.position[i] + length <= params_.capacity);
      const int64_t seen = batch.position[i] + length / 2 + 1;
      keys += length * (params_.ring() ? std::min(seen, 2 * params_.block_size) : seen);
    }
    const int64_t tokens = std::max<int64_t>(batch.offset[batch.rows], 1);
    const int64_t units = batch.rows * params_.heads;
    workspace.executor->For(
        units, Grain(params_, tokens, keys / tokens, units),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::AttentionForward(
              params_, batch, in.data, in.stride, state.base, state.slot_stride, out.data,
              out.stride, workspace.scratch + thread * workspace.scratch_stride, begin, end);
        });
  }

  void Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
              const Workspace& workspace) const override {
    if (batch.sequences == 0) return;
    for (int64_t i = 0; i < batch.sequences; ++i) {
      AFT_CHECK(params_.stores_keys() ||
                batch.offset[i + 1] - batch.offset[i] <= params_.position_rows);
    }
    const int64_t tokens = std::max<int64_t>(batch.offset[batch.sequences], 1);
    const int64_t keys = tokens / batch.sequences;
    const int64_t units = batch.sequences * params_.heads;
    workspace.executor->For(
        units,
        Grain(params_, tokens,
              params_.block_size > 0 ? std::min(keys, 3 * params_.block_size) : keys, units),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::AttentionEncode(params_, batch, in.data, in.stride, out.data, out.stride,
                                   workspace.scratch + thread * workspace.scratch_stride, begin,
                                   end);
        });
  }

  void EncodePairs(PackedIn queries, PackedIn keys, const SequenceBatch& batch, MixerOut out,
                   const Workspace& workspace) const override {
    const int64_t b = params_.block_size;
    const auto sees = [&](int64_t t, int64_t key) {
      if (params_.causal && key > t) return false;
      if (b == 0 || std::abs(t / b - key / b) <= 1) return true;
      return params_.global_token && (key == 0 || (t == 0 && !params_.causal));
    };
    ForEachPairQuery(queries, keys, batch, params_.hid(), out, workspace, sees,
                     [&](const PairQuery& query) {
                       for (int64_t head = 0; head < params_.heads; ++head) {
                         const int64_t column = head * params_.value_width;
                         kernels::PairScores(params_, head, query.packed, query.keys, query.stride,
                                             query.seen, query.scores);
                         kernels::PairMean(query.keys + params_.ValueColumn() + column,
                                           query.stride, params_.value_width, Number::kFp32,
                                           query.seen, query.scores, query.y + column);
                       }
                     });
  }

 private:
  const AttentionTables tables_;
  const kernels::AttentionParams& params_ = tables_.params;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          const MixerOptions& options) {
  AFT_ASSIGN_OR_RETURN(AttentionTables folded, FoldAttentionTables(config, hid, tables, options));
  return std::make_unique<AttentionMixer>(std::move(folded));
}

}  // namespace aft
