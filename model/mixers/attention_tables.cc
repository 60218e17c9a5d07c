#include <cmath>

#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/config/kinds.h"
#include "model/mixers/families.h"

namespace aft {

absl::StatusOr<AttentionTables> FoldAttentionTables(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables,
                                                    const MixerOptions& options) {
  AttentionTables folded;
  kernels::AttentionParams& params = folded.params;
  const KindSpec::Attention& kind = SpecOf(config.kind).attention;
  params.heads = config.heads;
  params.value_width = hid / config.heads;
  params.score_width = config.score_width > 0 ? config.score_width : params.value_width;
  if (kind.score == AttentionScore::kScaledDot) {
    params.scale = 1.0F / std::sqrt(static_cast<float>(params.score_width));
  }
  if (kind.score == AttentionScore::kCosine) params.score = kernels::Score::kCosine;
  if (kind.score == AttentionScore::kAdditive) params.score = kernels::Score::kAdditive;
  params.causal = config.causal;
  params.capacity = options.max_seq_len;
  params.block_size = config.block_size;
  params.global_token = config.block_size > 0 && config.global_token;
  params.full_decode = config.full_decode;
  if (kind.score_table != nullptr) {
    folded.score_weight = tables.at(kind.score_table);
    params.score_weight = folded.score_weight.const_data_ptr<float>();
  }
  if (kind.key_table != nullptr) {
    const at::Tensor& keys = tables.at(kind.key_table);
    params.position_rows = keys.size(0);
    params.capacity = keys.size(0);
    folded.position_keys =
        at::empty({kernels::RoundUpToKeyBlock(keys.size(0)) * keys.size(1)}, at::kFloat);
    kernels::PackKeys(keys.const_data_ptr<float>(), keys.size(0), keys.size(1),
                      folded.position_keys.data_ptr<float>());
    params.position_keys = folded.position_keys.const_data_ptr<float>();
  }
  if (params.causal && !params.ring() && params.capacity <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(MixerKindName(config.kind), " needs a max_seq_len: its state grows"));
  }
  return folded;
}

}  // namespace aft
