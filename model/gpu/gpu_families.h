#ifndef AFT_MODEL_GPU_GPU_FAMILIES_H_
#define AFT_MODEL_GPU_GPU_FAMILIES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/gpu/gpu_mixer.h"

namespace aft {

// The GPU mixer of each kernel family, for MakeGpuMixer, which has checked the tables.

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAftMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          at::Device device);

// DATA_LOSS: FoldConvFilter.
absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuConvMixer(const MixerConfig& config, int64_t hid,
                                                           const MixerTables& tables,
                                                           at::Device device);

// INVALID_ARGUMENT: FoldAttentionTables.
absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAttentionMixer(const MixerConfig& config,
                                                                int64_t hid,
                                                                const MixerTables& tables,
                                                                const MixerOptions& options,
                                                                at::Device device);

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_FAMILIES_H_
