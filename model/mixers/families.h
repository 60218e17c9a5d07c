#ifndef AFT_MODEL_MIXERS_FAMILIES_H_
#define AFT_MODEL_MIXERS_FAMILIES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/mixers/mixer.h"

namespace aft {

// The mixer of each kernel family, for MakeMixer, which has checked the tables.

// AFT-full is AFT-local with a window of band_rows: same kernel, same state.
absl::StatusOr<std::unique_ptr<Mixer>> MakeAftMixer(const MixerConfig& config, int64_t hid,
                                                    const MixerTables& tables);

// DATA_LOSS: FoldConvFilter.
absl::StatusOr<std::unique_ptr<Mixer>> MakeConvMixer(const MixerConfig& config, int64_t hid,
                                                     const MixerTables& tables);

// INVALID_ARGUMENT: FoldAttentionTables.
absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          const MixerOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_FAMILIES_H_
