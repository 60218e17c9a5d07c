// Linear layers and norms: float64, and that a row never depends on the rows beside it.

#include "model/kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/norm.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/same_bits.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

using kernels::Epilogue;

struct Free {
  void operator()(float* p) const { std::free(p); }
};

// A packed linear layer that owns its memory, beside the plain one.
struct TestLinear {
  TestLinear(TestRandom& random, int64_t in_width, int64_t out_width)
      : in(in_width),
        out(out_width),
        weight(random.Normals(in * out, 1 / std::sqrt(static_cast<double>(in)))),
        bias(random.Normals(out)) {
    const auto bytes =
        static_cast<size_t>(kernels::PackedWeightFloats(in, out, Number::kFp32) * 4 + 63) / 64 * 64;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    packed = kernels::PackLinear(weight.data(), bias.data(), in, out, Number::kFp32, memory.get());
  }

  // y [rows, out], what was in it before, panels [begin, end).
  std::vector<float> Run(const std::vector<float>& x, std::vector<float> y, Epilogue epilogue,
                         int64_t begin, int64_t end) const {
    kernels::Linear(packed, x.data(), in, static_cast<int64_t>(x.size()) / in, y.data(), out,
                    epilogue, begin, end);
    return y;
  }
  std::vector<float> Run(const std::vector<float>& x, Epilogue epilogue = Activation::kNone) const {
    const auto floats = x.size() / static_cast<size_t>(in) * static_cast<size_t>(out);
    return Run(x, std::vector<float>(floats, 0.5F), epilogue, 0, kernels::LinearPanels(out));
  }

  int64_t in;
  int64_t out;
  std::vector<float> weight;
  std::vector<float> bias;
  std::unique_ptr<float[], Free> memory;
  kernels::PackedWeight packed;
};

constexpr Epilogue kEpilogues[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                   Activation::kGeluTanh, Epilogue::Add()};

class LinearTest : public EveryInstructionSet {
 protected:
  TestRandom random_;
};

constexpr int64_t kShapes[][2] = {{1, 1}, {7, 33}, {100, 65}, {192, 576}, {64, 256}, {300, 31}};

TEST_P(LinearTest, EqualsFloat64WithEveryEpilogue) {
  for (const auto& shape : kShapes) {
    const TestLinear linear(random_, shape[0], shape[1]);
    const int64_t rows = 1 + random_.Below(30);
    const std::vector<float> x = random_.Normals(rows * linear.in);
    const std::vector<float> plain = linear.Run(x);
    const std::vector<float> relu = linear.Run(x, Activation::kRelu);
    const std::vector<float> gelu = linear.Run(x, Activation::kGelu);
    const std::vector<float> gelu_tanh = linear.Run(x, Activation::kGeluTanh);
    const std::vector<float> add = linear.Run(x, Epilogue::Add());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < linear.out; ++n) {
        double sum = linear.bias[static_cast<size_t>(n)];
        for (int64_t k = 0; k < linear.in; ++k) {
          sum += double{x[static_cast<size_t>(r * linear.in + k)]} *
                 linear.weight[static_cast<size_t>(n * linear.in + k)];
        }
        const auto i = static_cast<size_t>(r * linear.out + n);
        ASSERT_NEAR(plain[i], sum, tolerance::kLinear.each);
        ASSERT_NEAR(relu[i], std::max(sum, 0.0), tolerance::kLinear.each);
        ASSERT_NEAR(gelu[i], Activated(Activation::kGelu, sum), tolerance::kLinear.each);
        ASSERT_NEAR(gelu_tanh[i], Activated(Activation::kGeluTanh, sum), tolerance::kLinear.each);
        ASSERT_NEAR(add[i], 0.5 + sum, tolerance::kLinear.each);
      }
    }
  }
}

TEST_P(LinearTest, ARowIsTheSameBitsInEveryBatch) {
  for (const auto& shape : kShapes) {
    const TestLinear linear(random_, shape[0], shape[1]);
    const Epilogue epilogue = kEpilogues[random_.Below(std::size(kEpilogues))];
    constexpr int64_t kRows = 40;
    const std::vector<float> x = random_.Normals(kRows * linear.in);
    std::vector<float> alone;
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> y = linear.Run(Tokens(x, linear.in, r, r + 1), epilogue);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      const int64_t first = random_.Below(kRows - rows + 1);
      ASSERT_TRUE(SameBits(linear.Run(Tokens(x, linear.in, first, first + rows), epilogue),
                           Tokens(alone, linear.out, first, first + rows)))
          << rows << " rows, " << linear.in << " -> " << linear.out;
    }
  }
}

TEST_P(LinearTest, PanelsMayBeComputedApart) {
  const TestLinear linear(random_, 40, 300);
  const std::vector<float> x = random_.Normals(5 * linear.in);
  const std::vector<float> whole = linear.Run(x);
  const int64_t panels = kernels::LinearPanels(linear.out);
  std::vector<float> y(whole.size(), -7.0F);
  for (int64_t panel = panels; panel-- > 0;) {
    y = linear.Run(x, std::move(y), Activation::kNone, panel, panel + 1);
  }
  EXPECT_TRUE(SameBits(y, whole));
}

// A layer y = x, to see an activation alone.
TestLinear Identity(TestRandom& random) {
  TestLinear linear(random, 1, 1);
  linear.weight = {1.0F};
  linear.bias = {0.0F};
  linear.packed =
      kernels::PackLinear(linear.weight.data(), nullptr, 1, 1, Number::kFp32, linear.memory.get());
  return linear;
}

TEST_P(LinearTest, ActivationsAreExactOverTheirWholeRange) {
  const TestLinear identity = Identity(random_);
  std::vector<float> x;
  for (int i = -1600; i <= 1600; ++i) x.push_back(static_cast<float>(i) * 0.01F);
  for (int i = 0; i < 500; ++i) x.push_back(static_cast<float>(std::pow(10, -30 + i * 0.06)));
  const std::vector<float> relu = identity.Run(x, Activation::kRelu);
  const std::vector<float> gelu = identity.Run(x, Activation::kGelu);
  const std::vector<float> gelu_tanh = identity.Run(x, Activation::kGeluTanh);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(relu[i], std::max(x[i], 0.0F));
    EXPECT_NEAR(gelu_tanh[i], Activated(Activation::kGeluTanh, x[i]),
                4e-7 * std::max(1.0F, std::abs(x[i])));
    // The exact form keeps its digits in the tail too, down to where the result vanishes.
    const double want = Activated(Activation::kGelu, x[i]);
    EXPECT_NEAR(gelu[i], want, x[i] > -9 ? 4e-6 * std::abs(want) : 1e-18) << x[i];
    EXPECT_NEAR(gelu[i], want, 2e-7 * std::max(1.0F, std::abs(x[i]))) << x[i];
  }
}

TEST_P(LinearTest, LargeInputsPassActivationsUnharmed) {
  const TestLinear identity = Identity(random_);
  for (const Epilogue epilogue : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh}) {
    for (const float large : {1e6F, 1e20F}) {
      const std::vector<float> y = identity.Run({large, -large, NAN}, epilogue);
      EXPECT_FLOAT_EQ(y[0], large);
      EXPECT_NEAR(y[1], 0.0F, 1e-16F);
      EXPECT_TRUE(std::isnan(y[2]));
    }
  }
}

TEST_P(LinearTest, LayerNormEqualsFloat64) {
  for (const int64_t width : {1, 3, 16, 33, 192}) {
    const std::vector<float> weight = random_.Normals(width);
    const std::vector<float> bias = random_.Normals(width);
    std::vector<float> x = random_.Normals(4 * width, 3);
    for (float& value : x) value += 100;  // a mean that E[x^2] - mean^2 would not survive
    std::vector<float> y(x.size(), 0.0F);
    kernels::LayerNorm(x.data(), width, weight.data(), bias.data(), 1e-5F, y.data(), 0, 4);
    for (int64_t r = 0; r < 4; ++r) {
      double mean = 0;
      double variance = 0;
      for (int64_t i = 0; i < width; ++i) mean += x[static_cast<size_t>(r * width + i)];
      mean /= static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        variance += std::pow(x[static_cast<size_t>(r * width + i)] - mean, 2);
      }
      variance /= static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        const double normal =
            (x[static_cast<size_t>(r * width + i)] - mean) / std::sqrt(variance + 1e-5);
        EXPECT_NEAR(y[static_cast<size_t>(r * width + i)],
                    normal * weight[static_cast<size_t>(i)] + bias[static_cast<size_t>(i)],
                    tolerance::kLayerNorm.each);
      }
    }
  }
}

AFT_EVERY_INSTRUCTION_SET(LinearTest);

}  // namespace
}  // namespace aft
