#include "tests/parity/goldens.h"

#include <utility>

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
  for (const KindSpec& spec : AllKinds()) {
    if (spec.name == name) return spec.kind;
  }
  AFT_CHECK(false);
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

std::vector<float> Floats(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor floats = tensor.to(at::kFloat).contiguous();
  return {floats.const_data_ptr<float>(), floats.const_data_ptr<float>() + floats.numel()};
}
std::vector<double> Doubles(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor doubles = tensor.to(at::kDouble).contiguous();
  return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

testing::AssertionResult Close(const at::Tensor& got, const at::Tensor& want,
                               const Tolerance& tolerance) {
  if (got.sizes() != want.sizes()) {
    return testing::AssertionFailure() << "shape " << got.sizes() << ", want " << want.sizes();
  }
  return Close(Doubles(got), Doubles(want), tolerance);
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
