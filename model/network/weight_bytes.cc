#include "model/network/weight_bytes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "model/config/tensors.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/layers/embedding.h"
#include "model/mixers/tables.h"
#include "model/state/aligned_buffer.h"  // RoundUpToLine

namespace aft {

WeightBytes CountWeightBytes(const NetworkConfig& config, Number format) {
  const auto vector = [](int64_t floats) {
    return RoundUpToLine(floats) * static_cast<int64_t>(sizeof(float));
  };
  WeightBytes bytes;
  std::set<std::string> biases = {"head.bias"};  // a matrix is packed together with its bias
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.role == TensorRole::kMatrix) {
      const int64_t packed =
          vector((kernels::PackedWeightBytes(spec.shape[1], spec.shape[0], format) + 3) / 4);
      const bool looked_up = spec.name == "embed.weight" && !config.tie_embeddings;
      (looked_up ? bytes.lookups : bytes.products) += packed;
      biases.insert(absl::StrCat(absl::StripSuffix(spec.name, "weight"), "bias"));
      continue;
    }
    const bool of_the_mixer =
        absl::StrContains(spec.name, ".mixer.") && !absl::EndsWith(spec.name, ".mixer.shift");
    if (of_the_mixer || biases.count(spec.name) > 0 || spec.name == "position.weight") continue;
    bytes.products += vector(spec.count());  // norms and token shifts
  }
  bytes.lookups += vector(Embedding::PositionFloats(config));
  return bytes;
}

int64_t CountTableBytes(const NetworkConfig& config) {
  int64_t floats = AftTableFloats(config.mixer);
  if (floats == 0) {
    for (const TensorSpec& spec : ExpectedMixerTables(config.mixer, MixerWidth(config))) {
      floats += spec.count();
    }
  }
  return config.n_layers * floats * static_cast<int64_t>(sizeof(float));
}

int64_t CountReadBytes(const NetworkConfig& config) {
  constexpr absl::string_view kLayers = "layers.";
  std::map<std::string, int64_t> floats;  // of what LoadLayers reads at once
  int64_t most = 0;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    const size_t name = absl::StartsWith(spec.name, kLayers) ? kLayers.size() : 0;
    int64_t& all = floats[spec.name.substr(0, spec.name.find('.', name))];
    all += spec.count();
    most = std::max(most, all);
  }
  return most * static_cast<int64_t>(sizeof(float));
}

}  // namespace aft
