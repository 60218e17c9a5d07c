#ifndef AFT_MODEL_MIXERS_ATTENTION_TABLES_H_
#define AFT_MODEL_MIXERS_ATTENTION_TABLES_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/kernels/attention.h"
#include "model/mixers/mixer.h"  // MixerOptions
#include "model/mixers/tables.h"

namespace aft {

// What the kernels of the softmax attentions take, on the CPU: contiguous fp32.
struct AttentionTables {
  kernels::AttentionParams params;  // points into the two below
  at::Tensor score_weight;          // additive, else undefined
  at::Tensor position_keys;         // location, else undefined; made by kernels::PackKeys
};

// `tables` hold what ExpectedMixerTables lists. INVALID_ARGUMENT when the state grows and
// options.max_seq_len is 0.
absl::StatusOr<AttentionTables> FoldAttentionTables(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables,
                                                    const MixerOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_ATTENTION_TABLES_H_
