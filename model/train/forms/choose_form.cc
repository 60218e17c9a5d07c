#include "base/check.h"
#include "model/config/kinds.h"
#include "model/train/forms/forms.h"
#include "model/train/forms/train_form.h"

namespace aft {

bool CanCarry(const MixerConfig& config) {
  return SpecOf(config.kind).family == KernelFamily::kAft && config.causal && config.band_rows == 0;
}

at::Tensor TrainForm(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                     const TrainFormOptions& options) {
  AFT_CHECK(options.carry == nullptr || CanCarry(config));
  switch (config.kind) {
    case MixerKind::kAftSimple:
    case MixerKind::kAftLocal:
      return config.causal ? AftLocalForm(config, packed, tables, options)
                           : AftDenseForm(config, packed, tables, options);
    case MixerKind::kAftFull:
      return AftDenseForm(config, packed, tables, options);
    case MixerKind::kAftConv:
      return AftConvForm(config, packed, tables, options);
    case MixerKind::kBlockLocal:
      return BlockLocalForm(config, packed, options);
    case MixerKind::kDotProduct:
      return DotProductForm(config, packed, options);
    case MixerKind::kCosine:
      return CosineForm(config, packed, options);
    case MixerKind::kAdditive:
      return AdditiveForm(config, packed, tables, options);
    case MixerKind::kLocation:
      return LocationForm(config, packed, tables, options);
  }
  return {};
}

}  // namespace aft
