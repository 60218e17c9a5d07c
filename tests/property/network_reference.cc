#include "tests/property/network_reference.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ATen/ops/empty.h"
#include "model/network/tensors.h"

namespace aft {
namespace {

using Matrix = std::vector<std::vector<double>>;  // one row per token

class Reference {
 public:
  Reference(const NetworkConfig& config, const TensorMap& tensors)
      : config_(config), tensors_(tensors) {}

  Matrix Run(const std::vector<int32_t>& tokens) const {
    const auto d = static_cast<size_t>(config_.d_model);
    const float* embed = Data("embed.weight");
    Matrix x;
    for (const int32_t token : tokens) {
      const float* row = embed + static_cast<size_t>(token) * d;
      x.emplace_back(row, row + d);
    }
    for (int64_t i = 0; i < config_.n_layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      Add(x, Linear(Mix(Linear(Norm(x, layer + "norm1"), layer + "mixer.qkv"), layer),
                    layer + "mixer.out"));
      Matrix wide = Linear(Norm(x, layer + "norm2"), layer + "ffn.up");
      for (std::vector<double>& row : wide) {
        for (double& v : row) {
          v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
        }
      }
      Add(x, Linear(wide, layer + "ffn.down"));
    }
    return Linear(Norm(x, "norm"), "head", config_.tie_embeddings ? "embed" : "head");
  }

 private:
  const float* Data(const std::string& name) const {
    return tensors_.at(name).const_data_ptr<float>();
  }

  static void Add(Matrix& x, const Matrix& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
    }
  }

  Matrix Linear(const Matrix& x, const std::string& name,
                const std::string& weight_name = "") const {
    const float* bias = Data(name + ".bias");
    const float* weight = Data((weight_name.empty() ? name : weight_name) + ".weight");
    const auto out = static_cast<size_t>(tensors_.at(name + ".bias").size(0));
    Matrix y;
    for (const std::vector<double>& row : x) {
      std::vector<double>& sums = y.emplace_back(bias, bias + out);
      for (size_t n = 0; n < out; ++n) {
        for (size_t k = 0; k < row.size(); ++k) sums[n] += row[k] * weight[n * row.size() + k];
      }
    }
    return y;
  }

  Matrix Norm(const Matrix& x, const std::string& name) const {
    const float* weight = Data(name + ".weight");
    const float* bias = Data(name + ".bias");
    Matrix y = x;
    for (std::vector<double>& row : y) {
      double mean = 0;
      double variance = 0;
      for (const double v : row) mean += v / static_cast<double>(row.size());
      for (const double v : row)
        variance += (v - mean) * (v - mean) / static_cast<double>(row.size());
      for (size_t c = 0; c < row.size(); ++c) {
        row[c] =
            (row[c] - mean) / std::sqrt(variance + double{config_.norm_eps}) * weight[c] + bias[c];
      }
    }
    return y;
  }

  Matrix Mix(const Matrix& qkv, const std::string& layer) const {
    const int64_t window = config_.mixer.window;
    const int64_t h = config_.mixer.prefix_block;
    const float* band = window > 0 ? Data(layer + "mixer.w.band") : nullptr;
    const auto d = static_cast<size_t>(config_.d_model);
    Matrix y(qkv.size(), std::vector<double>(d));
    for (int64_t t = 0; t < static_cast<int64_t>(qkv.size()); ++t) {
      const float* w = band + (config_.mixer.band_rows > 1 ? t * window : 0);
      for (size_t c = 0; c < d; ++c) {
        double num = 0;
        double den = 0;
        for (int64_t t2 = 0; t2 <= t; ++t2) {
          if (h > 0 && t2 / h < t / h - 1) continue;
          const std::vector<double>& token = qkv[static_cast<size_t>(t2)];
          const double e = std::exp(token[d + c] + (t - t2 < window ? w[t - t2] : 0.0F));
          num += e * token[2 * d + c];
          den += e;
        }
        y[static_cast<size_t>(t)][c] = num / den / (1 + std::exp(-qkv[static_cast<size_t>(t)][c]));
      }
    }
    return y;
  }

  const NetworkConfig& config_;
  const TensorMap& tensors_;
};

}  // namespace

TensorMap RandomTensors(const NetworkConfig& config, TestRandom& random) {
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    const double fan_in = spec.shape.size() == 2 ? static_cast<double>(spec.shape[1]) : 25;
    const bool table = spec.name.find("w.band") != std::string::npos || spec.name == "embed.weight";
    const std::vector<float> values =
        random.Normals(tensor.numel(), table ? 1.0 : 1.5 / std::sqrt(fan_in));
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    tensors[spec.name] = tensor;
  }
  return tensors;
}

std::vector<std::vector<double>> NetworkReference(const NetworkConfig& config,
                                                  const TensorMap& tensors,
                                                  const std::vector<int32_t>& tokens) {
  return Reference(config, tensors).Run(tokens);
}

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - max);
  std::vector<double> logprobs;
  for (const double logit : logits) logprobs.push_back(logit - max - std::log(sum));
  return logprobs;
}

}  // namespace aft
