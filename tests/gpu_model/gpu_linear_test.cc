#include "model/gpu/gpu_linear.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "ATen/ops/allclose.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "model/gpu/device_tensor.h"
#include "model/kernels/cuda/product/product.h"
#include "tests/gpu_model/product_log.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

class GpuLinearTest : public testing::TestWithParam<Number> {
 protected:
  static constexpr int64_t kRows = 3;
  static constexpr int64_t kIn = 21;
  static constexpr int64_t kOut = 10;

  at::Tensor Normals(at::IntArrayRef shape) {
    const at::Tensor tensor = at::empty(shape, at::kFloat);
    const std::vector<float> values = random_.Normals(tensor.numel());
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    return tensor;
  }

  // Runs `work` on the queue's stream and waits for its end. A copy to the host would not wait for
  // it, because the test's thread copies on another stream.
  absl::Status RunToEnd(absl::FunctionRef<absl::Status()> work) {
    absl::Status status = queue_->Run(work);
    return status.ok() ? queue_->Synchronize() : status;
  }

  TestRandom random_;
  const std::unique_ptr<GpuQueue> queue_ = MakeTestQueue();
};

TEST_P(GpuLinearTest, SumsAndBiasKeepTheDigitsOfFp32InEveryFormat) {
  const at::ScalarType type = ScalarTypeOf(GetParam());
  const at::Tensor weight = Normals({kOut, kIn}).to(type).to(at::kFloat);
  const at::Tensor bias = Normals({kOut});
  const absl::StatusOr<GpuLinear> linear =
      GpuLinear::Create("up", weight, bias, GetParam(), TestDevice());
  ASSERT_TRUE(linear.ok()) << linear.status();
  ASSERT_EQ(linear->columns(), kIn + kBiasColumns);
  const at::Tensor x = at::ones({kRows, linear->columns()}, at::kFloat);
  x.narrow(1, 0, kIn).copy_(Normals({kRows, kIn}).to(type));
  const at::Tensor y = at::empty({kRows, kOut}, at::TensorOptions(TestDevice()).dtype(at::kFloat));
  const at::Tensor input = x.to(type).to(TestDevice());
  const absl::Status multiplied =
      RunToEnd([&] { return linear->Forward(input, y, queue_->stream()); });
  ASSERT_TRUE(multiplied.ok()) << multiplied;

  const at::Tensor got = y.cpu();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t out = 0; out < kOut; ++out) {
      double sum = bias.const_data_ptr<float>()[out];
      for (int64_t i = 0; i < kIn; ++i) {
        sum += double{x.const_data_ptr<float>()[row * x.size(1) + i]} *
               double{weight.const_data_ptr<float>()[out * kIn + i]};
      }
      EXPECT_NEAR(got.const_data_ptr<float>()[row * kOut + out], sum, tolerance::kReordered.each);
    }
  }
}

// Only bf16 products on a GPU include the activation. In all other cases Activates is false.
TEST_P(GpuLinearTest, TheActivationAppliesToTheSumInFp32) {
  if (!TestDevice().is_cuda() || GetParam() != Number::kBf16) {
    EXPECT_FALSE(GpuLinear::Activates(Activation::kGeluTanh, GetParam(), TestDevice()));
    return;
  }
  EXPECT_FALSE(GpuLinear::Activates(Activation::kGelu, GetParam(), TestDevice()));
  const at::ScalarType type = ScalarTypeOf(GetParam());
  constexpr int64_t kWide = 24;  // it and kUp are multiples of 8, as in a model
  constexpr int64_t kUp = 48;
  const at::Tensor weight = Normals({kUp, kWide}).to(type).to(at::kFloat);
  const at::Tensor bias = Normals({kUp}).to(type).to(at::kFloat);
  const auto linear = GpuLinear::Create("up", weight, at::Tensor(), GetParam(), TestDevice());
  ASSERT_TRUE(linear.ok()) << linear.status();
  for (const int64_t rows : {1, 3, 70}) {
    const at::Tensor x = Normals({rows, kWide}).to(type).to(at::kFloat);
    for (const Activation activation : {Activation::kRelu, Activation::kGeluTanh}) {
      ASSERT_TRUE(GpuLinear::Activates(activation, GetParam(), TestDevice()));
      const at::Tensor y = at::empty({rows, kUp}, at::TensorOptions(TestDevice()).dtype(type));
      const at::Tensor input = x.to(type).to(TestDevice());
      const at::Tensor addend = bias.to(type).to(TestDevice());
      const absl::Status activated = RunToEnd(
          [&] { return linear->ForwardActivated(input, addend, activation, y, queue_->stream()); });
      ASSERT_TRUE(activated.ok()) << activated;
      const at::Tensor got = y.cpu().to(at::kFloat);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t out = 0; out < kUp; ++out) {
          double sum = bias.const_data_ptr<float>()[out];
          for (int64_t i = 0; i < kWide; ++i) {
            sum += double{x.const_data_ptr<float>()[row * kWide + i]} *
                   double{weight.const_data_ptr<float>()[out * kWide + i]};
          }
          const double expected = Activated(activation, sum);
          EXPECT_NEAR(got.const_data_ptr<float>()[row * kUp + out], expected,
                      tolerance::kBf16.each * std::max(1.0, std::abs(expected)));
        }
      }
    }
  }
}

// Both paths give the same numbers, and the one for few rows asks the library for nothing.
TEST_P(GpuLinearTest, FewRowsOfBf16NeedNoLibrary) {
  const at::ScalarType type = ScalarTypeOf(GetParam());
  const at::Tensor weight = Normals({24, 40});
  const auto linear = GpuLinear::Create("out", weight, at::Tensor(), GetParam(), TestDevice());
  ASSERT_TRUE(linear.ok()) << linear.status();
  constexpr int64_t kMost = kernels::cuda::kFewRows;
  const at::Tensor x = Normals({kMost + 1, 40}).to(type).to(TestDevice());
  const at::TensorOptions fp32 = at::TensorOptions(TestDevice()).dtype(at::kFloat);
  const at::Tensor many = at::empty({kMost + 1, 24}, fp32);
  const at::Tensor few = at::empty({kMost, 24}, fp32);
  const ProductLog products;
  ASSERT_TRUE(RunToEnd([&] { return linear->Forward(x, many, queue_->stream()); }).ok());
  EXPECT_EQ(products.rows().size(), 1U);
  const at::Tensor first = x.narrow(0, 0, kMost);
  ASSERT_TRUE(RunToEnd([&] { return linear->Forward(first, few, queue_->stream()); }).ok());
  EXPECT_EQ(products.rows().size(), GetParam() == Number::kBf16 ? 1U : 2U);
  EXPECT_TRUE(
      at::allclose(few.cpu(), many.narrow(0, 0, kMost).cpu(), 0.0, tolerance::kReordered.each));
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuLinearTest,
                         testing::Values(Number::kFp32, Number::kBf16, Number::kFp16));

}  // namespace
}  // namespace aft
