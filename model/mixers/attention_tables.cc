#include "model/mixers/attention_tables.h"

#include <cmath>

#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aft {

absl::StatusOr<AttentionTables> FoldAttentionTables(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables,
                                                    const MixerOptions& options) {
  AttentionTables folded;
  kernels::AttentionParams& params = folded.params;
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
    folded.score_weight = tables.at("score.v");
    params.score_weight = folded.score_weight.const_data_ptr<float>();
  }
  if (config.kind == MixerKind::kLocation) {
    folded.position_keys =
        at::empty({kernels::RoundUpToKeyBlock(config.band_rows) * hid}, at::kFloat);
    kernels::PackKeys(tables.at("location.weight").const_data_ptr<float>(), config.band_rows, hid,
                      folded.position_keys.data_ptr<float>());
    params.position_keys = folded.position_keys.const_data_ptr<float>();
    params.position_rows = config.band_rows;
    params.capacity = config.band_rows;
  }
  if (params.causal && !params.ring() && params.capacity <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(MixerKindName(config.kind), " needs a max_seq_len: its state grows"));
  }
  return folded;
}

}  // namespace aft
