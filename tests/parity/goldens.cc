#include "tests/parity/goldens.h"

#include <utility>

#include "base/check.h"

namespace aft {

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

}  // namespace aft
