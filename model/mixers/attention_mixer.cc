#include "model/mixers/attention_mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft {
namespace {

// Units that are worth a second thread: about 8 us of multiply-adds.
int64_t Grain(const kernels::AttentionParams& params, int64_t tokens, int64_t keys_per_token,
              int64_t units) {
  constexpr int64_t kWorkPerThread = 100000;
  const int64_t per_score = params.score == kernels::Score::kAdditive ? 16 : 1;
  const int64_t per_key = per_score * params.score_width + params.value_width;
  const int64_t work = tokens * std::max<int64_t>(keys_per_token, 1) * per_key * params.heads;
  return std::max<int64_t>(kWorkPerThread / std::max<int64_t>(work / units, 1), 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> AttentionMixer::Create(const MixerConfig& config,
                                                              int64_t hid,
                                                              const MixerTables& tables,
                                                              const MixerOptions& options) {
  std::unique_ptr<AttentionMixer> mixer(new AttentionMixer);
  kernels::AttentionParams& params = mixer->params_;
  params.heads = config.heads;
  params.score_width = hid / config.heads;
  params.value_width = hid / config.heads;
  params.causal = config.causal;
  params.capacity = options.max_seq_len;
  if (config.kind == MixerKind::kDotProduct || config.kind == MixerKind::kBlockLocal) {
    params.scale = 1.0F / std::sqrt(static_cast<float>(params.score_width));
  }
  if (config.kind == MixerKind::kBlockLocal) {
    params.block_size = config.block_size;
    params.global_token = config.global_token;
    params.full_decode = config.full_decode;
  }
  if (config.kind == MixerKind::kCosine) params.score = kernels::Score::kCosine;
  if (config.kind == MixerKind::kAdditive) {
    params.score = kernels::Score::kAdditive;
    params.score_width = config.score_width;
    mixer->score_weight_ = tables.at("score.v");
    params.score_weight = mixer->score_weight_.const_data_ptr<float>();
  }
  if (config.kind == MixerKind::kLocation) {
    mixer->position_keys_.resize(
        static_cast<size_t>(kernels::RoundUpToKeyBlock(config.band_rows) * hid));
    kernels::PackKeys(tables.at("location.weight").const_data_ptr<float>(), config.band_rows, hid,
                      mixer->position_keys_.data());
    params.position_keys = mixer->position_keys_.data();
    params.position_rows = config.band_rows;
    params.capacity = config.band_rows;
  }
  if (params.causal && !params.ring() && params.capacity <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(MixerKindName(config.kind), " needs a max_seq_len: its state grows"));
  }
  return mixer;
}

StateSpec AttentionMixer::state_spec() const {
  const kernels::AttentionStateLayout layout(params_);
  StateSpec spec;
  spec.floats = layout.Floats();
  const auto add = [&spec](const char* name, int64_t offset, int64_t end) {
    if (end > offset) spec.sections.push_back({name, offset, end - offset});
  };
  add("first_key", layout.FirstKey(), layout.FirstValue());
  add("first_value", layout.FirstValue(), layout.Keys());
  add("keys", layout.Keys(), layout.Values());
  add("values", layout.Values(), layout.Floats());
  if (!params_.ring()) {
    spec.floats_per_token =
        params_.heads * ((params_.stores_keys() ? params_.score_width : 0) + params_.value_width);
    // Each head fills from its front: keys by spans of blocks, values token by token.
    for (StateSection& section : spec.sections) {
      const bool keys = section.name == "keys";
      const int64_t span = params_.block_size > 0 ? params_.block_size : kernels::kKeyBlock;
      section.parts = params_.heads;
      section.granule_tokens = keys ? span : 1;
      section.granule_floats =
          keys ? kernels::RoundUpToKeyBlock(span) * params_.score_width : params_.value_width;
    }
  }
  return spec;
}

void AttentionMixer::Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
                             const Workspace& workspace) const {
  if (batch.rows == 0) return;
  int64_t keys = 0;  // seen by the batch's tokens together
  for (int64_t i = 0; i < batch.rows; ++i) {
    const int64_t length = batch.offset[i + 1] - batch.offset[i];
    AFT_CHECK(params_.ring() || batch.slot[i] < 0 ||
              batch.position[i] + length <= params_.capacity);
    const int64_t seen = batch.position[i] + length / 2 + 1;
    keys += length * (params_.ring() ? std::min(seen, 2 * params_.block_size) : seen);
  }
  const int64_t tokens = std::max<int64_t>(batch.offset[batch.rows], 1);
  const int64_t units = batch.rows * params_.heads;
  workspace.executor->For(units, Grain(params_, tokens, keys / tokens, units),
                          [&](int64_t begin, int64_t end, int thread) {
                            kernels::AttentionForward(
                                params_, batch, in.data, in.stride, state.base, state.slot_stride,
                                out.data, out.stride,
                                workspace.scratch + thread * workspace.scratch_stride, begin, end);
                          });
}

void AttentionMixer::Encode(PackedIn in, const SequenceBatch& batch, MixerOut out,
                            const Workspace& workspace) const {
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
      Grain(params_, tokens, params_.block_size > 0 ? std::min(keys, 3 * params_.block_size) : keys,
            units),
      [&](int64_t begin, int64_t end, int thread) {
        kernels::AttentionEncode(params_, batch, in.data, in.stride, out.data, out.stride,
                                 workspace.scratch + thread * workspace.scratch_stride, begin, end);
      });
}

}  // namespace aft
