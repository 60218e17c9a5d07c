#ifndef AFT_MODEL_CONVERT_AFT_MODULE_H_
#define AFT_MODEL_CONVERT_AFT_MODULE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/source.h"

namespace aft {

// The config of an architecture "mixer" around the projections of which `query` is a name: [hid,
// d], with biases or without. Its kind is still to be set.
absl::StatusOr<NetworkConfig> MixerModuleConfig(Source& source, const std::string& query);

// Makes `config` an AFT-full with the position bias w [T, T], [query, key], or with a window an
// AFT-local of which only the band |t - t'| < window counts, and adds the table to `tensors` below
// `layer`. At most T tokens either way. INVALID_ARGUMENT names `name`, the source's of w.
absl::Status UseBias(const std::string& name, const at::Tensor& w, std::optional<int64_t> window,
                     const std::string& layer, NetworkConfig* config, TensorMap* tensors);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_AFT_MODULE_H_
