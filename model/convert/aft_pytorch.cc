#include <utility>

#include "base/status_macros.h"
#include "model/convert/import.h"
#include "model/convert/source.h"

namespace aft {

absl::StatusOr<Import> ImportAftPytorch(WeightFiles files, std::optional<int64_t> window) {
  constexpr Renamed kMixerNames[] = {{"mixer.qkv", "to_q to_k to_v"}, {"mixer.out", "project"}};
  Source source(std::move(files));
  Import import;
  import.metadata["imported_from"] = "aft-pytorch";
  AFT_ASSIGN_OR_RETURN(import.config, MixerModuleConfig(source, "to_q"));
  MixerConfig& mixer = import.config.mixer;
  mixer.causal = false;
  if (source.Has("wbias")) {
    AFT_ASSIGN_OR_RETURN(const at::Tensor bias, source.Read("wbias", {Source::kAny, Source::kAny}));
    AFT_RETURN_IF_ERROR(
        UseBias(source, "wbias", bias, window, "layers.0.", &import.config, &import.tensors));
  } else if (window.has_value()) {
    return source.Error("wbias", "is missing: an AFTSimple, which has no window");
  } else {
    mixer.kind = MixerKind::kAftSimple;
  }
  AFT_RETURN_IF_ERROR(TakeNetwork(source, import.config, "", kMixerNames, &import.tensors));
  AFT_RETURN_IF_ERROR(source.Finish(&import));
  return import;
}

}  // namespace aft
