// The AFT modules of aft_pytorch and labml_nn, with their projections, from their own state_dicts.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/linear.h"
#include "gtest/gtest.h"
#include "model/train/forms/train_form.h"
#include "tests/parity/goldens.h"
#include "tests/parity/mixer_run.h"

namespace aft {
namespace {

constexpr int64_t kLengths[] = {1, 7, 8, 9, 64};  // 1, s - 1, s, s + 1, the most there may be

at::Tensor Linear(const TensorMap& state, const std::string& name, const at::Tensor& x) {
  const auto bias = state.find(name + ".bias");
  return at::linear(x, state.at(name + ".weight"),
                    bias == state.end() ? std::nullopt : std::make_optional(bias->second));
}

// A package's names of the projections and of the position bias, which is [query, key].
struct Names {
  std::string q, k, v, out, bias;
};
const Names kAftPytorch = {"to_q", "to_k", "to_v", "project", "wbias"};
const Names kLabml = {"query", "key", "value", "output", "pos_bias"};

// A module from its state_dict, around our mixer.
class Module {
 public:
  Module(const std::string& file, const Names& names, MixerConfig config)
      : state_(ReadGoldens(file).tensors), names_(names), config_(config) {
    at::set_num_threads(1);  // tiny tensors: a second thread only waits
    if (state_.count(names.bias) > 0) {
      // The whole table, with whatever is outside of the band.
      tables_["w.full"] = state_.at(names.bias);
      config_.bias = BiasForm::kFull;
      config_.band_rows = tables_["w.full"].size(0);
    }
  }

  at::Tensor Packed(const at::Tensor& x) const {
    return at::cat(
        {Linear(state_, names_.q, x), Linear(state_, names_.k, x), Linear(state_, names_.v, x)}, 1);
  }
  at::Tensor Project(const at::Tensor& y) const { return Linear(state_, names_.out, y); }

  at::Tensor Encode(const at::Tensor& x) const { return Project(Run(x).Encode(Packed(x))); }
  at::Tensor Forward(const at::Tensor& x, int64_t chunk) const {
    return Project(Run(x).Forward(Packed(x), chunk));
  }
  at::Tensor Train(const at::Tensor& x) const {
    return Project(TrainForm(config_, Packed(x).unsqueeze(0), tables_)[0]);
  }

 private:
  MixerRun Run(const at::Tensor& x) const {
    return MixerRun(config_, state_.at(names_.q + ".weight").size(0), tables_, x.size(0));
  }

  TensorMap state_;
  Names names_;
  MixerConfig config_;
  MixerTables tables_;
};

MixerConfig Config(MixerKind kind, bool causal, int64_t window) {
  MixerConfig config;
  config.kind = kind;
  config.causal = causal;
  config.window = window;
  return config;
}

struct AftPytorchCase {
  std::string name;
  MixerKind kind;
  int64_t window;

  friend void PrintTo(const AftPytorchCase& module, std::ostream* out) { *out << module.name; }
};

class AftPytorchTest : public testing::TestWithParam<AftPytorchCase> {};

TEST_P(AftPytorchTest, ModuleGivesTheSameOutputs) {
  const Module module(GetParam().name, kAftPytorch,
                      Config(GetParam().kind, false, GetParam().window));
  const TensorMap cases = ReadGoldens(GetParam().name + ".cases").tensors;
  for (const int64_t t : kLengths) {
    const at::Tensor x = cases.at("x").narrow(0, 0, t);
    const std::string length = "." + std::to_string(t);
    const at::Tensor y = module.Encode(x);
    EXPECT_TRUE(Close(y, cases.at("expected" + length), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(y, cases.at("package" + length), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(module.Train(x), cases.at("expected" + length), tolerance::kLayer)) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, AftPytorchTest,
    testing::Values(AftPytorchCase{"aft_pytorch_full_16", MixerKind::kAftFull, 0},
                    AftPytorchCase{"aft_pytorch_full_32", MixerKind::kAftFull, 0},
                    AftPytorchCase{"aft_pytorch_simple_16", MixerKind::kAftSimple, 0},
                    AftPytorchCase{"aft_pytorch_simple_32", MixerKind::kAftSimple, 0},
                    AftPytorchCase{"aft_pytorch_local_16", MixerKind::kAftLocal, 8},
                    AftPytorchCase{"aft_pytorch_local_32", MixerKind::kAftLocal, 8}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(AftPytorchDifferenceTest, KeysAbove88AreFiniteHereOnly) {
  const Module module("aft_pytorch_overflow", kAftPytorch, Config(MixerKind::kAftFull, false, 0));
  const TensorMap cases = ReadGoldens("aft_pytorch_overflow.cases").tensors;
  EXPECT_FALSE(at::isfinite(cases.at("package.16")).any().item<bool>());
  // Keys near 100, rounded to fp32 by the projection, carry 4e-6 each.
  EXPECT_TRUE(
      Close(module.Encode(cases.at("x")), cases.at("expected.16"), tolerance::kLayerKeys100));
}

class LabmlTest : public testing::TestWithParam<std::string> {};

TEST_P(LabmlTest, ModuleGivesTheSameOutputs) {
  const Module module(GetParam(), kLabml, Config(MixerKind::kAftLocal, true, 8));
  const TensorMap cases = ReadGoldens(GetParam() + ".cases").tensors;
  for (const int64_t t : kLengths) {
    const at::Tensor x = cases.at("x").narrow(0, 0, t);
    const std::string length = "." + std::to_string(t);
    const at::Tensor prefill = module.Forward(x, t);
    EXPECT_TRUE(Close(prefill, cases.at("expected" + length), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(prefill, cases.at("package" + length), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(module.Forward(x, 1), prefill, tolerance::kReordered)) << t;
    EXPECT_TRUE(Close(module.Encode(x), cases.at("expected" + length), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(module.Train(x), cases.at("expected" + length), tolerance::kLayer)) << t;
  }
}

TEST_P(LabmlTest, RingInBf16StaysClose) {
  MixerConfig config = Config(MixerKind::kAftLocal, true, 8);
  config.ring = Number::kBf16;
  const Module module(GetParam(), kLabml, config);
  const TensorMap cases = ReadGoldens(GetParam() + ".cases").tensors;
  EXPECT_TRUE(Close(module.Forward(cases.at("x"), 1), cases.at("expected.64"), tolerance::kBf16));
}

INSTANTIATE_TEST_SUITE_P(Goldens, LabmlTest,
                         testing::Values("labml_aft_local", "labml_aft_local_nobias"),
                         [](const auto& param_info) { return param_info.param; });

TEST(LabmlDifferenceTest, KeysThatRiseBy104AreFiniteHereOnly) {
  const Module module("labml_spread", kLabml, Config(MixerKind::kAftLocal, true, 8));
  const TensorMap cases = ReadGoldens("labml_spread.cases").tensors;
  EXPECT_FALSE(at::isfinite(cases.at("package.64")).all().item<bool>());
  // Keys near 90, rounded to fp32 by the projection, carry 4e-6 each.
  for (const int64_t chunk : {64, 1}) {
    EXPECT_TRUE(Close(module.Forward(cases.at("x"), chunk), cases.at("expected.64"),
                      tolerance::kLayerKeys100));
  }
}

}  // namespace
}  // namespace aft
