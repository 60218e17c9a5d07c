#include "model/gpu/gpu_need.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aft {
namespace {

std::string InMib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue) {
  int64_t all = 0;
  std::string words;
  for (const GpuNeed& need : needs) {
    all += need.bytes;
    absl::StrAppend(&words, words.empty() ? "" : ", ", need.name, " ", InMib(need.bytes));
  }
  if (all <= queue.free_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(queue.name(), " has ", InMib(queue.free_bytes()), " of ",
                   InMib(queue.total_bytes()), " free, the model needs ", InMib(all), ": ", words));
}

}  // namespace aft
