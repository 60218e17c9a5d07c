#include "model/train/train_token_shift.h"

#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/string_view.h"
#include "model/config/kinds.h"

namespace aft {
namespace {

// The part of a packed input that `input` makes, in fp32.
at::Tensor MakePart(const at::Tensor& input, const std::string& mixer, const PackedPart& part,
                    const TrainLinear& linear) {
  const std::string name = mixer + part.name;
  if (part.rank == 0) return linear.Forward(input, name).to(at::kFloat);
  at::Tensor narrow = linear.Forward(input, name + ".down").to(at::kFloat);
  if (part.between == PackedPart::Between::kTanh) narrow = narrow.tanh();
  if (part.between == PackedPart::Between::kSigmoid) narrow = narrow.sigmoid();
  return linear.Forward(narrow, name + ".up").to(at::kFloat);
}

}  // namespace

at::Tensor TrainLinear::Forward(const at::Tensor& x, const std::string& weight,
                                const std::string& bias) const {
  const auto found = parameters_.find(bias);
  return at::linear(x.to(format_), parameters_.at(weight).to(format_),
                    found == parameters_.end() ? at::Tensor() : found->second.to(format_));
}

std::vector<at::Tensor> TrainTokenShift::Inputs(const at::Tensor& x, const std::string& shares,
                                                at::Tensor* carried) const {
  const at::Tensor first = carried != nullptr ? carried->unsqueeze(1).to(x.scalar_type())
                                              : at::zeros({x.size(0), 1, x.size(2)}, x.options());
  const at::Tensor before = at::cat({first, x.slice(1, 0, x.size(1) - 1)}, 1);
  if (carried != nullptr) {
    // A view would keep all of x alive until the next step.
    const at::Tensor last = x.select(1, x.size(1) - 1).detach();
    *carried = last.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  const at::Tensor& rows = parameters_.at(shares);
  std::vector<at::Tensor> inputs;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    inputs.push_back(x + (before - x) * rows.select(0, row));
  }
  return inputs;
}

at::Tensor TrainTokenShift::Pack(const at::Tensor& x, const std::string& mixer,
                                 at::Tensor* carried) {
  const KindSpec& kind = SpecOf(config_.mixer.kind);
  const int64_t hid = MixerWidth(config_);
  const std::vector<at::Tensor> inputs = Inputs(x, mixer + "shift", carried);
  std::vector<at::Tensor> parts;
  for (const PackedPart& spec : kind.packed(config_.mixer, hid)) {
    const at::Tensor& input = inputs[parts.size()];
    at::Tensor part = MakePart(input, mixer, spec, linear_);
    if (kind.value_gate != nullptr && absl::string_view(spec.name) == "v") {
      if (!first_values_.defined()) {
        first_values_ = part;
      } else {
        const PackedPart gate = kind.value_gate(config_.mixer, hid);
        part = part + (first_values_ - part) * MakePart(input, mixer, gate, linear_).sigmoid();
      }
    }
    parts.push_back(part);
  }
  return at::cat(parts, 2);
}

}  // namespace aft
