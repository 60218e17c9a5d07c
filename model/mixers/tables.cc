#include "model/mixers/tables.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/config/tensors.h"

namespace aft {

absl::Status CheckMixerTables(const MixerConfig& config, int64_t hid, const MixerTables& tables) {
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

}  // namespace aft
