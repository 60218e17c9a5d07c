#include "model/train/start_values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"

namespace aft {
namespace {

// The bias at the distance |t - t'|. With w = 0 the nearest token weighs as little as one that is
// two hundred places back, and learning starts with a long plateau. So layer l starts with a slope
// from 5 to 0 over the nearest 2^(l+1) tokens.
double Slope(int64_t distance, int64_t layer, int64_t window) {
  const int64_t span = layer >= 16 ? window : std::min<int64_t>(window, int64_t{2} << layer);
  if (distance >= span) return 0;
  return 5.0 * (1.0 - static_cast<double>(distance) / static_cast<double>(span));
}

// Fills a matrix [outputs, inputs] with uniform values that have the spread of Glorot's rule.
void FillXavier(at::Generator& generator, at::Tensor& matrix) {
  const double bound = std::sqrt(6.0 / static_cast<double>(matrix.size(0) + matrix.size(1)));
  matrix.uniform_(-bound, bound, generator);
}

// Fills position biases for keys before their query and, in a bidirectional mixer, after it.
void FillSlope(TensorStart start, const MixerConfig& mixer, int64_t window, int64_t layer,
               at::Tensor& table) {
  if (start == TensorStart::kOffsets) {
    const int64_t columns = table.size(1);
    const int64_t own = mixer.causal ? 0 : (columns - 1) / 2;  // the column of offset 0
    for (int64_t j = 0; j < columns; ++j) {
      table.select(1, j).fill_(Slope(std::abs(j - own), layer, columns - own));
    }
    return;
  }
  for (int64_t j = 0; j < table.size(0); ++j) {
    table.diagonal(-j).fill_(Slope(j, layer, window));
    if (!mixer.causal) table.diagonal(j).fill_(Slope(j, layer, window));
  }
}

void FillTable(const TensorSpec& spec, const MixerConfig& mixer, BiasStart bias, int64_t layer,
               at::Generator& generator, at::Tensor& table) {
  if (spec.start == TensorStart::kNormal) table.normal_(0.0, spec.spread, generator);
  if (spec.start != TensorStart::kOffsets && spec.start != TensorStart::kDiagonals) return;
  if (bias == BiasStart::kXavier) FillXavier(generator, table);
  if (bias != BiasStart::kSlope) return;
  const KindSpec& kind = SpecOf(mixer.kind);
  const int64_t window = kind.bias_window == nullptr ? 0 : kind.bias_window(mixer);
  FillSlope(spec.start, mixer, window, layer, table);
}

class Start {
 public:
  Start(const NetworkConfig& config, const StartOptions& options)
      : config_(config),
        options_(options),
        generator_(at::detail::createCPUGenerator(options.seed)) {}

  TensorMap Make() {
    for (const TensorSpec& spec : ExpectedTensors(config_)) {
      at::Tensor tensor = at::zeros(spec.shape);
      if (spec.start == TensorStart::kOnes) tensor.fill_(1.0);
      if (options_.rule == StartRule::kNarrow) {
        FillNarrow(spec, tensor);
      } else if (spec.role == TensorRole::kMatrix) {
        FillMatrix(spec, tensor);
      } else {
        FillVector(spec, tensor);
      }
      tensors_.emplace(spec.name, tensor);
    }
    // The tables are drawn after the weights, so that the weights are the same with every mixer.
    for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
      for (const TensorSpec& spec : ExpectedMixerTables(config_.mixer, MixerWidth(config_))) {
        FillTable(spec, config_.mixer, options_.bias, layer, generator_,
                  tensors_.at(absl::StrCat("layers.", layer, ".mixer.", spec.name)));
      }
    }
    return std::move(tensors_);
  }

 private:
  void FillNarrow(const TensorSpec& spec, at::Tensor& tensor) {
    if (spec.start == TensorStart::kWeight) tensor.normal_(0.0, options_.spread, generator_);
    if (spec.start == TensorStart::kResidual) {
      const double layers = static_cast<double>(config_.n_layers);
      tensor.normal_(0.0, options_.spread / std::sqrt(2.0 * layers), generator_);
    }
  }

  void FillMatrix(const TensorSpec& spec, at::Tensor& matrix) {
    if (options_.rule == StartRule::kXavier) {
      FillXavier(generator_, matrix);
    } else if (spec.name == "embed.weight") {
      matrix.normal_(0.0, 1.0, generator_);
    } else {
      FillLinear(matrix.size(1), matrix);
    }
  }

  // Fills a tensor that is not a matrix. FillTable fills the mixers' tables, except location's.
  void FillVector(const TensorSpec& spec, at::Tensor& tensor) {
    absl::string_view name = spec.name;
    if (spec.start == TensorStart::kWeight && options_.rule == StartRule::kLinear) {
      tensor.normal_(0.0, 1.0, generator_);  // rows by position
    } else if (spec.start == TensorStart::kZeros && absl::ConsumeSuffix(&name, ".bias")) {
      // ExpectedTensors lists a layer's bias after its weight, whose inputs bound both.
      const auto weight = tensors_.find(absl::StrCat(name, ".weight"));
      if (weight != tensors_.end() && weight->second.dim() == 2) {
        FillLinear(weight->second.size(1), tensor);
      }
    }
  }

  void FillLinear(int64_t inputs, at::Tensor& tensor) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
    tensor.uniform_(-bound, bound, generator_);
  }

  const NetworkConfig& config_;
  const StartOptions& options_;
  at::Generator generator_;
  TensorMap tensors_;
};

}  // namespace

TensorMap StartValues(const NetworkConfig& config, const StartOptions& options) {
  const at::NoGradGuard no_grad;
  return Start(config, options).Make();
}

}  // namespace aft
