#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/kernels/aft/aft.h"
#include "model/kernels/attention/attention.h"
#include "model/kernels/conv/conv.h"
#include "model/kernels/wkv/wkv.h"
#include "model/mixers/mixer.h"

namespace aft {

// The state that mixers of each kernel family keep for a sequence, the same on every device.
// `scratch_floats`: kernels::AftSlotScratchFloats on the CPU.
StateSpec AftStateSpec(const kernels::AftStateLayout& layout, int64_t scratch_floats = 0);
StateSpec ConvStateSpec(const kernels::ConvStateLayout& layout);
StateSpec AttentionStateSpec(const kernels::AttentionParams& params);
StateSpec WkvStateSpec(int64_t floats);

// The states that the token shifts of a layer keep in addition to its mixer's, each the vector of
// the last token: first the shift before the mixer, then the one before the feed-forward. Networks
// without token shift have none.
std::vector<StateSpec> ShiftStateSpecs(const NetworkConfig& config);

// The parameters and tables of the softmax attention kernels, on the CPU: contiguous fp32.
struct AttentionTables {
  kernels::AttentionParams params;  // points into the two below
  at::Tensor score_weight;          // additive, else undefined
  at::Tensor position_keys;         // location, else undefined; made by kernels::PackKeys
};

// `tables` hold the tensors that ExpectedMixerTables lists. INVALID_ARGUMENT when the state grows
// and options.max_seq_len is 0.
absl::StatusOr<AttentionTables> FoldAttentionTables(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables,
                                                    const MixerOptions& options);

// RWKV's tables as the kernels read them, one after the other as in ExpectedMixerTables, and
// parameters that point into such an array in the memory of any device.
std::vector<float> FoldWkvTables(const MixerConfig& config, int64_t hid, const MixerTables& tables);
kernels::Wkv4Params Wkv4ParamsOf(int64_t hid, const float* tables);
kernels::Wkv7Params Wkv7ParamsOf(const MixerConfig& config, int64_t hid, const float* tables);

// The mixer of each family, for MakeMixer, which has checked the tables.

// AFT-full is AFT-local with a window of band_rows: it has the same kernel and the same state.
absl::StatusOr<std::unique_ptr<Mixer>> MakeAftMixer(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables);

// DATA_LOSS: as FoldConvFilter.
absl::StatusOr<std::unique_ptr<Mixer>> MakeConvMixer(const MixerConfig& config, int64_t hid,
                                                     const MixerTables& tables);

// INVALID_ARGUMENT: as FoldAttentionTables.
absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          const MixerOptions& options);

std::unique_ptr<Mixer> MakeWkvMixer(const MixerConfig& config, int64_t hid,
                                    const MixerTables& tables);

}  // namespace aft
