#include "model/mixers/mixer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/mixers/aft_mixer.h"
#include "model/mixers/attention_mixer.h"
#include "model/mixers/conv_mixer.h"
#include "model/network/tensors.h"

namespace aft {
namespace {

absl::Status CheckTables(const MixerConfig& config, int64_t hid, const MixerTables& tables) {
  for (const TensorSpec& spec : ExpectedMixerTables(config, hid)) {
    const auto table = tables.find(spec.name);
    if (table == tables.end()) return absl::DataLossError(absl::StrCat(spec.name, " is missing"));
    const at::Tensor& tensor = table->second;
    if (tensor.scalar_type() != at::kFloat || tensor.sizes() != at::IntArrayRef(spec.shape) ||
        !tensor.is_contiguous()) {
      return absl::DataLossError(absl::StrCat(spec.name, " is not contiguous fp32 [",
                                              absl::StrJoin(spec.shape, ", "), "]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const MixerConfig& config, int64_t hid,
                                                 const MixerTables& tables,
                                                 const MixerOptions& options) {
  AFT_RETURN_IF_ERROR(CheckTables(config, hid, tables));
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
