#include "model/mixers/mixer.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "model/mixers/aft_mixer.h"
#include "model/mixers/attention_mixer.h"
#include "model/mixers/conv_mixer.h"

namespace aft {

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables,
                                                 const MixerOptions& options) {
  AFT_RETURN_IF_ERROR(CheckMixerTables(config, hid, tables));
  switch (config.kind) {
    case MixerKind::kAftSimple:
    case MixerKind::kAftLocal:
    case MixerKind::kAftFull:
      return AftMixer::Create(config, hid, tables);
    case MixerKind::kAftConv:
      return ConvMixer::Create(config, hid, tables);
    case MixerKind::kBlockLocal:
    case MixerKind::kDotProduct:
    case MixerKind::kCosine:
    case MixerKind::kAdditive:
    case MixerKind::kLocation:
      return AttentionMixer::Create(config, hid, tables, options);
  }
  return absl::InvalidArgumentError("mixer.kind: not a kind");
}

}  // namespace aft
