#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/mixers/families.h"
#include "model/mixers/mixer.h"

namespace aft {

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables,
                                                 const MixerOptions& options) {
  AFT_RETURN_IF_ERROR(CheckMixerTables(config, hid, tables));
  switch (SpecOf(config.kind).family) {
    case KernelFamily::kAft:
      return MakeAftMixer(config, hid, tables);
    case KernelFamily::kConv:
      return MakeConvMixer(config, hid, tables);
    case KernelFamily::kAttention:
      return MakeAttentionMixer(config, hid, tables, options);
    case KernelFamily::kWkv:
      return MakeWkvMixer(config, hid, tables);
  }
  AFT_CHECK(false);
}

}  // namespace aft
