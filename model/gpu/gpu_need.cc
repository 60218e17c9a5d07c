#include "model/gpu/gpu_need.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "model/config/tensors.h"
#include "model/mixers/tables.h"

namespace aft {

int64_t DeviceWeightBytes(const NetworkConfig& config, Number format) {
  const int64_t band = AftBandFloats(config.mixer);
  int64_t bytes = config.n_layers * band * NumberBytes(Number::kFp32);
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (band > 0 && absl::StrContains(spec.name, ".mixer.w.")) continue;
    bytes += spec.count() * NumberBytes(spec.role == TensorRole::kMatrix ? format : Number::kFp32);
  }
  return bytes;
}

GpuNeed KeptForLibraries(const GpuQueue& queue) {
  const int64_t total = queue.total_bytes();
  return {"kept for libraries", std::min(std::max(total / 50, int64_t{256} << 20), total / 4)};
}

absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue) {
  int64_t all = 0;
  std::string words;
  for (const GpuNeed& need : needs) {
    all += need.bytes;
    absl::StrAppend(&words, words.empty() ? "" : ", ", need.name, " ", Mebibytes(need.bytes));
  }
  if (all <= queue.free_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      queue.name(), " has ", Mebibytes(queue.free_bytes()), " of ", Mebibytes(queue.total_bytes()),
      " free, the model needs ", Mebibytes(all), ": ", words));
}

}  // namespace aft
