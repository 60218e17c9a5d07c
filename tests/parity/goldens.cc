#include "tests/parity/goldens.h"

#include <utility>

#include "ATen/ops/isfinite.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace aft {
namespace {

int64_t Number(const std::string& text) {
  int64_t value = 0;
  AFT_CHECK(absl::SimpleAtoi(text, &value));
  return value;
}

MixerKind KindByName(const std::string& name) {
  for (int i = 0; i < kMixerKinds; ++i) {
    if (MixerKindName(static_cast<MixerKind>(i)) == name) return static_cast<MixerKind>(i);
  }
  AFT_CHECK(false);
  return {};
}

BiasForm BiasByName(const std::string& name) {
  AFT_CHECK(name == "full" || name == "factors");
  return name == "full" ? BiasForm::kFull : BiasForm::kFactors;
}

void SetField(const std::string& key, const std::string& value, OperatorCase* golden) {
  MixerConfig& config = golden->config;
  const std::map<std::string, int64_t*> integers = {{"window", &config.window},
                                                    {"band_rows", &config.band_rows},
                                                    {"heads", &config.heads},
                                                    {"bias_rank", &config.bias_rank},
                                                    {"score_width", &config.score_width},
                                                    {"grid_width", &golden->grid_width}};
  const std::map<std::string, bool*> flags = {{"causal", &config.causal},
                                              {"reparameterized", &config.reparameterized},
                                              {"unbiased_std", &config.unbiased_std},
                                              {"grid", &config.grid}};
  if (const auto integer = integers.find(key); integer != integers.end()) {
    *integer->second = Number(value);
  } else if (const auto flag = flags.find(key); flag != flags.end()) {
    *flag->second = Number(value) != 0;
  } else if (key == "kind") {
    config.kind = KindByName(value);
  } else {
    AFT_CHECK(key == "bias");
    config.bias = BiasByName(value);
  }
}

}  // namespace

SafetensorsFile ReadGoldens(const std::string& name) {
  absl::StatusOr<SafetensorsFile> file =
      ReadSafetensors("tests/parity/goldens/" + name + ".safetensors");
  if (!file.ok()) ADD_FAILURE() << file.status();
  AFT_CHECK(file.ok());
  return *std::move(file);
}

testing::AssertionResult Close(const at::Tensor& got, const at::Tensor& want,
                               const Tolerance& tolerance) {
  if (got.sizes() != want.sizes()) {
    return testing::AssertionFailure() << "shape " << got.sizes() << ", want " << want.sizes();
  }
  if (!at::isfinite(got).all().item<bool>()) {
    return testing::AssertionFailure() << "not finite";
  }
  const at::Tensor w = want.to(at::kDouble);
  const at::Tensor error = got.to(at::kDouble).sub(w).abs();
  const double excess = error.sub(w.abs().mul(tolerance.relative)).max().item<double>();
  const double rms = error.square().mean().div(w.square().mean()).sqrt().item<double>();
  if (excess <= tolerance.absolute && rms <= tolerance.rms) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "error " << error.max().item<double>() << " (by more than the relative part: " << excess
         << ", allowed " << tolerance.absolute << "), RMS ratio " << rms << " (allowed "
         << tolerance.rms << "), at element " << error.argmax().item<int64_t>();
}

std::vector<OperatorCase> OperatorCases(const SafetensorsFile& goldens) {
  std::vector<OperatorCase> cases;
  for (const auto& [name, fields] : goldens.metadata) {
    OperatorCase golden{name, {}, 0};
    for (const absl::string_view field : absl::StrSplit(fields, ' ')) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(field, '=');
      SetField(entry.first, entry.second, &golden);
    }
    cases.push_back(std::move(golden));
  }
  return cases;
}

MixerTables Below(const TensorMap& tensors, const std::string& prefix) {
  MixerTables below;
  for (const auto& [name, tensor] : tensors) {
    if (absl::StartsWith(name, prefix)) below[name.substr(prefix.size())] = tensor;
  }
  return below;
}

}  // namespace aft
