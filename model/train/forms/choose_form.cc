#include "ATen/ops/zeros.h"
#include "base/check.h"
#include "model/config/kinds.h"
#include "model/train/forms/forms.h"
#include "model/train/forms/train_form.h"

namespace aft {

bool CanCarry(const MixerConfig& config) {
  const KernelFamily family = SpecOf(config.kind).family;
  // The state before a text is a parameter, which is not carried from segment to segment.
  if (config.initial_state) return false;
  if (family == KernelFamily::kWkv) return true;
  return family == KernelFamily::kAft && config.causal && config.band_rows == 0;
}

MixerCarry EmptyMixerCarry(const MixerConfig& config, int64_t batch, int64_t hid) {
  MixerCarry carry;
  switch (config.kind) {
    case MixerKind::kWkv4:
      carry.sums = at::zeros({batch, 3, hid});
      carry.sums.select(1, 2).fill_(kEmptyWkv4Max);
      return carry;
    case MixerKind::kWkv7: {
      const int64_t width = hid / config.heads;
      carry.sums = at::zeros({batch, config.heads, width, width});
      return carry;
    }
    default:
      return EmptyAftCarry(config, batch, hid);
  }
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
    case MixerKind::kWkv4:
      return Wkv4Form(packed, tables, options);
    case MixerKind::kWkv7:
      return Wkv7Form(config, packed, tables, options);
  }
  return {};
}

}  // namespace aft
