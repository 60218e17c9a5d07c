#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/gpu/gpu_mixer.h"

namespace aft {

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuMixer(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables,
                                                       const MixerOptions& options,
                                                       at::Device device) {
  AFT_RETURN_IF_ERROR(CheckMixerTables(config, hid, tables));
  switch (SpecOf(config.kind).family) {
    case KernelFamily::kAft:
      return MakeGpuAftMixer(config, hid, tables, device);
    case KernelFamily::kConv:
      return MakeGpuConvMixer(config, hid, tables, device);
    case KernelFamily::kAttention:
      return MakeGpuAttentionMixer(config, hid, tables, options, device);
    case KernelFamily::kWkv:
      return MakeGpuWkvMixer(config, hid, tables, device);
  }
  AFT_CHECK(false);
}

}  // namespace aft
