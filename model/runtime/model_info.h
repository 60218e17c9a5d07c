#ifndef AFT_MODEL_RUNTIME_MODEL_INFO_H_
#define AFT_MODEL_RUNTIME_MODEL_INFO_H_

#include <cstdint>

#include "model/network/config.h"
#include "model/runtime/model_runner.h"

namespace aft {

// What every CPU runner says of its network, fp32; sizes of states are left at 0.
inline ModelInfo CpuModelInfo(const NetworkConfig& config, int64_t weight_bytes) {
  ModelInfo info;
  info.architecture = MixerKindName(config.mixer.kind);
  info.vocab_size = config.vocab_size;
  info.parameters = CountParameters(config);
  info.max_seq_len = config.max_seq_len;
  info.weight_bytes = weight_bytes;
  info.weight_format = "fp32";
  info.device = "cpu";
  return info;
}

}  // namespace aft

#endif  // AFT_MODEL_RUNTIME_MODEL_INFO_H_
