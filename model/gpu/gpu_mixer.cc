#include "model/gpu/gpu_mixer.h"

#include "base/status_macros.h"
#include "model/gpu/gpu_aft_mixer.h"
#include "model/gpu/gpu_attention_mixer.h"
#include "model/gpu/gpu_conv_mixer.h"

namespace aft {

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuMixer(const MixerConfig& config, int64_t hid,
                                                       const MixerTables& tables,
                                                       const MixerOptions& options,
                                                       at::Device device) {
  AFT_RETURN_IF_ERROR(CheckMixerTables(config, hid, tables));
  switch (config.kind) {
    case MixerKind::kAftSimple:
    case MixerKind::kAftLocal:
    case MixerKind::kAftFull:
      return GpuAftMixer::Create(config, hid, tables, device);
    case MixerKind::kAftConv:
      return GpuConvMixer::Create(config, hid, tables, device);
    case MixerKind::kBlockLocal:
    case MixerKind::kDotProduct:
    case MixerKind::kCosine:
    case MixerKind::kAdditive:
    case MixerKind::kLocation:
      return GpuAttentionMixer::Create(config, hid, tables, options, device);
  }
  return absl::InvalidArgumentError("mixer.kind: not a kind");
}

}  // namespace aft
