#include "model/convert/aft_pytorch.h"

#include "base/status_macros.h"
#include "model/convert/aft_module.h"
#include "model/convert/source.h"

namespace aft {

absl::StatusOr<Import> ImportAftPytorch(const TensorMap& tensors, std::optional<int64_t> window) {
  Source source(tensors);
  Import import;
  import.metadata["imported_from"] = "aft-pytorch";
  AFT_ASSIGN_OR_RETURN(const Projections projections,
                       TakeProjections(source, "", {"to_q", "to_k", "to_v", "project"}, "layers.0.",
                                       &import.tensors));
  import.config = MixerModuleConfig(projections);
  MixerConfig& mixer = import.config.mixer;
  mixer.causal = false;
  if (!source.Has("wbias")) {
    if (window.has_value()) {
      return TensorError("wbias", "is missing: an AFTSimple, which has no window");
    }
    mixer.kind = MixerKind::kAftSimple;
    AFT_RETURN_IF_ERROR(source.Finish());
    return import;
  }
  AFT_ASSIGN_OR_RETURN(const at::Tensor bias, source.Take("wbias", {Source::kAny, Source::kAny}));
  AFT_RETURN_IF_ERROR(UseBias("wbias", bias, window, "layers.0.", &import.config, &import.tensors));
  AFT_RETURN_IF_ERROR(source.Finish());
  return import;
}

}  // namespace aft
