#include "model/train/forms/train_form.h"

#include "base/check.h"
#include "model/train/forms/aft_conv_form.h"
#include "model/train/forms/aft_dense_form.h"
#include "model/train/forms/attention_form.h"
#include "model/train/forms/band_bias.h"

namespace aft {

bool CanCarry(const MixerConfig& config) {
  const bool prefix = config.kind == MixerKind::kAftSimple || config.kind == MixerKind::kAftLocal;
  return prefix && config.causal && config.band_rows == 0;
}

at::Tensor TrainForm(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                     const TrainFormOptions& options) {
  AFT_CHECK(options.carry == nullptr || CanCarry(config));
  switch (config.kind) {
    case MixerKind::kAftSimple:
    case MixerKind::kAftLocal:
      if (!config.causal) return AftDense(config, packed, tables, options);
      return AftParallel(packed, LocalBand(config, tables, packed.size(1)), config.window,
                         config.prefix_block, options.carry, options.gemm, options.mask);
    case MixerKind::kAftFull:
      return AftDense(config, packed, tables, options);
    case MixerKind::kAftConv:
      return AftConvTrain(config, packed, tables, options);
    case MixerKind::kBlockLocal:
      return BlockLocalTrain(config, packed, options);
    case MixerKind::kDotProduct:
      return DotProductTrain(config, packed, options);
    case MixerKind::kCosine:
      return CosineTrain(config, packed, options);
    case MixerKind::kAdditive:
      return AdditiveTrain(config, packed, tables, options);
    case MixerKind::kLocation:
      return LocationTrain(config, packed, tables, options);
  }
  return {};
}

}  // namespace aft
