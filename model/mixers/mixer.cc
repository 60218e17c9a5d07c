#include "model/mixers/mixer.h"

#include "absl/status/status.h"
#include "model/mixers/aft_mixer.h"

namespace aft {

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables) {
  switch (config.kind) {
    case MixerKind::kAftSimple:
      return AftMixer::Create(config, hid, tables);
    case MixerKind::kAftLocal:
      return AftMixer::Create(config, hid, tables);
  }
  return absl::InvalidArgumentError("mixer.kind: unknown");
}

}  // namespace aft
