// Products of few rows against float64, for all sizes that a block or a warp may have left over.
#include "model/kernels/cuda/product/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cuda/device_matrix.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/close.h"

namespace aft::kernels::cuda {
namespace {

class CudaProductTest : public testing::Test {
 protected:
  // A weight and a bias of numbers that bf16 holds, and the model that reads them.
  struct Layer {
    Layer(TestRandom& random, int64_t in, int64_t out, Activation activation = Activation::kNone)
        : weight(random.Normals(in * out, 1.0 / std::sqrt(in)), in, Number::kBf16),
          bias(random.Normals(out), out, Number::kBf16),
          model{in, out, weight.in().data, bias.in().data, activation} {}

    DeviceMatrix weight;
    DeviceMatrix bias;
    ProductModel model;
  };

  // Rows of bf16 numbers with a gap after each.
  DeviceMatrix Rows(int64_t count, int64_t in) {
    return {random_.Normals(count * in), in, Number::kBf16, in + 8};
  }

  static std::vector<float> Multiply(const ProductModel& model, const DeviceMatrix& x,
                                     int64_t count, Number out = Number::kFp32) {
    const DeviceMatrix y(std::vector<float>(static_cast<size_t>(count * model.out), 77.0F),
                         model.out, out, model.out + 3);
    EXPECT_EQ(MultiplyFewRows(model, x.in(), count, y.out(), nullptr), 0);
    return y.Get();
  }

  static std::vector<double> Reference(const Layer& layer, const std::vector<float>& x) {
    const std::vector<float> weight = layer.weight.Get();
    const std::vector<float> bias = layer.bias.Get();
    const auto in = static_cast<size_t>(layer.model.in);
    std::vector<double> y;
    for (size_t row = 0; row < x.size(); row += in) {
      for (size_t out = 0; out < bias.size(); ++out) {
        double sum = layer.model.bias == nullptr ? 0.0 : double{bias[out]};
        for (size_t i = 0; i < in; ++i) sum += double{x[row + i]} * double{weight[out * in + i]};
        y.push_back(Activated(layer.model.activation, sum));
      }
    }
    return y;
  }

  TestRandom random_;
};

TEST_F(CudaProductTest, EqualsFloat64ForAllSizes) {
  for (const int64_t in : {8, 24, 32, 256, 264, 1024, 1032, 2056, 4104}) {
    for (const int64_t out : {1, 8, 19}) {
      const Layer layer(random_, in, out);
      for (const int64_t count : {1, 2, 7, 8, 9, 16}) {
        SCOPED_TRACE(testing::Message() << in << " to " << out << ", " << count << " rows");
        const DeviceMatrix x = Rows(count, in);
        EXPECT_TRUE(
            Close(Multiply(layer.model, x, count), Reference(layer, x.Get()), tolerance::kLinear));
      }
    }
  }
}

TEST_F(CudaProductTest, AddsTheBiasAndActivatesBeforeItRounds) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                      Activation::kGeluTanh, Activation::kSquaredRelu}) {
    for (const bool with_bias : {true, false}) {
      for (const Number out : {Number::kFp32, Number::kBf16}) {
        Layer layer(random_, 72, 21, activation);
        if (!with_bias) layer.model.bias = nullptr;
        const DeviceMatrix x = Rows(5, 72);
        EXPECT_TRUE(Close(Multiply(layer.model, x, 5, out), Reference(layer, x.Get()),
                          out == Number::kFp32 ? tolerance::kLinear : tolerance::kBf16))
            << static_cast<int>(activation) << " " << with_bias;
      }
    }
  }
}

TEST_F(CudaProductTest, ARowIsTheSameBitsWhateverItsNeighbours) {
  constexpr int64_t kIn = 1032;
  const Layer layer(random_, kIn, 16);
  const std::vector<float> rows = random_.Normals(kFewRows * kIn);
  const std::vector<float> together =
      Multiply(layer.model, DeviceMatrix(rows, kIn, Number::kBf16), kFewRows);
  for (const int64_t row : {0, 3, 8, 15}) {
    const auto from = rows.begin() + row * kIn;
    const DeviceMatrix x({from, from + kIn}, kIn, Number::kBf16);
    const auto expected = together.begin() + row * 16;
    EXPECT_EQ(Multiply(layer.model, x, 1), std::vector<float>(expected, expected + 16)) << row;
  }
}

TEST_F(CudaProductTest, WhatIsNotFiniteStaysInItsRow) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Layer layer(random_, 64, 9);
    std::vector<float> rows = random_.Normals(3 * 64);
    rows[64 + 5] = bad;
    const std::vector<float> y = Multiply(layer.model, DeviceMatrix(rows, 64, Number::kBf16), 3);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 9 != 1) << i;
  }
}

TEST_F(CudaProductTest, RefusesWhatItCannotRead) {
  const Layer layer(random_, 64, 9);
  const DeviceMatrix x = Rows(kFewRows, 64);
  const DeviceMatrix y(kFewRows + 1, 9, Number::kFp32);
  const auto multiply = [&](const ProductModel& model, In in, int64_t count, Out out) {
    return MultiplyFewRows(model, in, count, out, nullptr);
  };
  EXPECT_EQ(multiply(layer.model, x.in(), 0, y.out()), 0);
  EXPECT_NE(multiply(layer.model, x.in(), -1, y.out()), 0);
  EXPECT_NE(multiply(layer.model, x.in(), kFewRows + 1, y.out()), 0);
  EXPECT_NE(multiply(layer.model, x.in(), 1, {y.out().data, Number::kFp16, 9}), 0);

  EXPECT_TRUE(FitsFewRows(layer.model, x.in()));
  const auto refused = [&](const ProductModel& model, In in) {
    EXPECT_FALSE(FitsFewRows(model, in));
    EXPECT_NE(multiply(model, in, 1, y.out()), 0);
  };
  In odd = x.in();
  odd.stride = 68;
  refused(layer.model, odd);
  odd = x.in();
  odd.type = Number::kFp32;
  refused(layer.model, odd);
  odd = x.in();
  odd.data = static_cast<const char*>(odd.data) + 2;
  refused(layer.model, odd);
  ProductModel model = layer.model;
  model.in = 60;
  refused(model, x.in());
  model = layer.model;
  model.weight = static_cast<const char*>(model.weight) + 2;
  refused(model, x.in());
}

}  // namespace
}  // namespace aft::kernels::cuda
