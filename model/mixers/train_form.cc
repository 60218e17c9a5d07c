#include "model/mixers/train_form.h"

#include "base/check.h"
#include "model/mixers/attention_train.h"

namespace aft {

bool CanCarry(const MixerConfig& config) {
  const bool prefix = config.kind == MixerKind::kAftSimple || config.kind == MixerKind::kAftLocal;
  return prefix && config.causal && config.band_rows == 0;
}

at::Tensor TrainForm(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                     const TrainFormOptions& options) {
  if (config.kind == MixerKind::kDotProduct) return DotProductTrain(config, packed, options);
  AFT_CHECK(config.kind == MixerKind::kAftSimple || config.kind == MixerKind::kAftLocal);
  const auto band = tables.find("w.band");
  return AftParallel(packed, band == tables.end() ? at::Tensor() : band->second, config.window,
                     config.prefix_block, options.carry, options.gemm);
}

}  // namespace aft
