// Tests linear layers and norms against float64, and that a row never depends on its neighbours.

#include "model/kernels/linear/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/instruction_set.h"
#include "model/kernels/norm.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/same_bits.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

using kernels::Epilogue;

// tests/property/CMakeLists.txt names the set where it chooses the emulated processor.
TEST(InstructionSetTest, IsTheBestThatTheProcessorHasAndTheLimitAllows) {
  const char* const expected = std::getenv("AFT_EXPECTED_INSTRUCTION_SET");
  if (expected == nullptr) GTEST_SKIP() << "the processor is not known";
  EXPECT_EQ(kernels::InstructionSet(), expected);
}

struct Free {
  void operator()(float* p) const { std::free(p); }
};

// A packed linear layer that owns its memory. `stored` has the weights as the format holds them.
struct TestLinear {
  TestLinear(TestRandom& random, int64_t in_width, int64_t out_width, Number number = Number::kFp32)
      : in(in_width),
        out(out_width),
        format(number),
        weight(random.Normals(in * out, 1 / std::sqrt(static_cast<double>(in)))),
        bias(random.Normals(out)),
        memory(Aligned(kernels::PackedWeightBytes(in, out, format))) {
    Pack();
  }

  static std::unique_ptr<float[], Free> Aligned(int64_t bytes) {
    const auto whole = static_cast<size_t>(bytes + 63) / 64 * 64;
    return std::unique_ptr<float[], Free>(static_cast<float*>(std::aligned_alloc(64, whole)));
  }

  void Pack() {
    packed = kernels::PackLinear(weight.data(), bias.data(), in, out, format, memory.get());
    stored.resize(weight.size());
    for (int64_t n = 0; n < out; ++n) kernels::UnpackOutput(packed, n, stored.data() + n * in);
  }

  // Computes the panels [begin, end) of y [rows, out] and leaves the rest of y as it is.
  std::vector<float> Run(const std::vector<float>& x, std::vector<float> y, Epilogue epilogue,
                         int64_t begin, int64_t end) const {
    kernels::LinearRows rows = {x.data(), in, static_cast<int64_t>(x.size()) / in};
    const int64_t row_bytes = kernels::QuantizedBytes(format, in);
    const auto quantized = Aligned(rows.rows * row_bytes + 1);
    if (row_bytes > 0) {
      for (int64_t r = rows.rows; r-- > 0;) {  // in any order
        kernels::QuantizeRows(format, rows, in, r, r + 1, quantized.get());
      }
      rows.x = nullptr;
      rows.quantized = quantized.get();
    }
    kernels::Linear(packed, rows, y.data(), out, epilogue, begin, end);
    return y;
  }
  std::vector<float> Run(const std::vector<float>& x, Epilogue epilogue = Activation::kNone) const {
    const auto floats = x.size() / static_cast<size_t>(in) * static_cast<size_t>(out);
    return Run(x, std::vector<float>(floats, 0.5F), epilogue, 0, kernels::LinearPanels(out));
  }

  // x as the product uses it: x itself, or x rounded to bf16 or int8.
  std::vector<float> Taken(const std::vector<float>& x) const {
    if (kernels::QuantizedBytes(format, in) == 0) return x;
    std::vector<float> taken;
    if (format == Number::kBf16) {
      for (const float value : x) {  // to eight bits, ties to even
        int exponent;
        const double digits = std::nearbyint(std::ldexp(std::frexp(double{value}, &exponent), 8));
        taken.push_back(static_cast<float>(std::ldexp(digits, exponent - 8)));
      }
      return taken;
    }
    for (size_t first = 0; first < x.size(); first += static_cast<size_t>(in)) {
      float largest = 0;
      for (size_t k = first; k < first + static_cast<size_t>(in); ++k) {
        largest = std::max(largest, std::abs(x[k]));
      }
      const double scale = double{largest} / 127;
      for (size_t k = first; k < first + static_cast<size_t>(in); ++k) {
        taken.push_back(largest == 0 ? 0.0F
                                     : static_cast<float>(scale * std::nearbyint(x[k] / scale)));
      }
    }
    return taken;
  }

  int64_t in;
  int64_t out;
  Number format;
  std::vector<float> weight;
  std::vector<float> bias;
  std::unique_ptr<float[], Free> memory;
  kernels::PackedWeight packed;
  std::vector<float> stored;  // the weight as it is packed
};

constexpr Epilogue kEpilogues[] = {Activation::kNone,        Activation::kRelu,
                                   Activation::kGelu,        Activation::kGeluTanh,
                                   Activation::kSquaredRelu, Epilogue::Add()};

class LinearTest : public EveryInstructionSet {
 protected:
  TestRandom random_;
};

constexpr Number kFormats[] = {Number::kFp32, Number::kBf16, Number::kInt8};
constexpr int64_t kShapes[][2] = {{1, 1}, {7, 33}, {100, 65}, {192, 576}, {64, 256}, {300, 31}};

// Calls fn with a linear layer of every format and shape.
template <typename Fn>
void ForEach(TestRandom& random, const Fn& fn) {
  for (const Number format : kFormats) {
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(NumberName(format));
      fn(TestLinear(random, shape[0], shape[1], format));
    }
  }
}

TEST_P(LinearTest, EqualsFloat64WithEveryEpilogue) {
  ForEach(random_, [&](const TestLinear& linear) {
    const int64_t rows = 1 + random_.Below(30);
    const std::vector<float> given = random_.Normals(rows * linear.in);
    const std::vector<float> x = linear.Taken(given);
    const std::vector<float> plain = linear.Run(given);
    const std::vector<float> relu = linear.Run(given, Activation::kRelu);
    const std::vector<float> gelu = linear.Run(given, Activation::kGelu);
    const std::vector<float> gelu_tanh = linear.Run(given, Activation::kGeluTanh);
    const std::vector<float> squared = linear.Run(given, Activation::kSquaredRelu);
    const std::vector<float> add = linear.Run(given, Epilogue::Add());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < linear.out; ++n) {
        double sum = linear.bias[static_cast<size_t>(n)];
        for (int64_t k = 0; k < linear.in; ++k) {
          sum += double{x[static_cast<size_t>(r * linear.in + k)]} *
                 linear.stored[static_cast<size_t>(n * linear.in + k)];
        }
        const auto i = static_cast<size_t>(r * linear.out + n);
        ASSERT_NEAR(plain[i], sum, tolerance::kLinear.each);
        ASSERT_NEAR(relu[i], std::max(sum, 0.0), tolerance::kLinear.each);
        ASSERT_NEAR(gelu[i], Activated(Activation::kGelu, sum), tolerance::kLinear.each);
        ASSERT_NEAR(gelu_tanh[i], Activated(Activation::kGeluTanh, sum), tolerance::kLinear.each);
        ASSERT_EQ(squared[i], relu[i] * relu[i]);
        ASSERT_NEAR(add[i], 0.5 + sum, tolerance::kLinear.each);
      }
    }
  });
}

// One chain has the same bits on every processor that can fuse.
TEST_P(LinearTest, AProductOfFloatsIsOneChainOfFusedMultiplyAdds) {
  const std::string set = kernels::InstructionSet();
  if (set == "SSE4" || set == "portable") GTEST_SKIP() << "cannot fuse";
  for (const Number format : {Number::kFp32, Number::kBf16}) {
    const TestLinear linear(random_, 100, 65, format);
    if (kernels::QuantizedBytes(format, linear.in) > 0) continue;  // AVX512-BF16 adds pairs
    const std::vector<float> x = random_.Normals(linear.in);
    std::vector<float> chains = linear.bias;
    for (size_t n = 0; n < chains.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) {
        chains[n] = std::fma(x[k], linear.stored[n * x.size() + k], chains[n]);
      }
    }
    EXPECT_TRUE(SameBits(linear.Run(x), chains)) << NumberName(format);
  }
}

TEST_P(LinearTest, ARowIsTheSameBitsInEveryBatch) {
  ForEach(random_, [&](const TestLinear& linear) {
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
  });
}

TEST_P(LinearTest, BothWaysOfReadingWeightsGiveTheSameBits) {
  const bool prefers_one_stream = kernels::PrefersOneStream();
  ForEach(random_, [&](const TestLinear& linear) {
    for (int64_t rows = 1; rows <= 14; ++rows) {
      const std::vector<float> x = random_.Normals(rows * linear.in);
      const std::vector<float> y = linear.Run(x);
      kernels::PreferOneStream(!prefers_one_stream);
      EXPECT_TRUE(SameBits(linear.Run(x), y)) << rows << " rows";
      kernels::PreferOneStream(prefers_one_stream);
    }
  });
}

TEST_P(LinearTest, PanelsMayBeComputedApart) {
  for (const Number format : kFormats) {
    const TestLinear linear(random_, 40, 300, format);
    const std::vector<float> x = random_.Normals(5 * linear.in);
    const std::vector<float> whole = linear.Run(x);
    const int64_t panels = kernels::LinearPanels(linear.out);
    std::vector<float> y(whole.size(), -7.0F);
    for (int64_t panel = panels; panel-- > 0;) {
      y = linear.Run(x, std::move(y), Activation::kNone, panel, panel + 1);
    }
    EXPECT_TRUE(SameBits(y, whole)) << NumberName(format);
  }
}

TEST_P(LinearTest, ABatchWithoutRowsChangesNothing) {
  ForEach(random_, [](const TestLinear& linear) {
    const std::vector<float> y(static_cast<size_t>(linear.out), -7.0F);
    const int64_t panels = kernels::LinearPanels(linear.out);
    EXPECT_TRUE(SameBits(linear.Run({}, y, Activation::kNone, 0, panels), y));
  });
}

TEST(LinearFormatTest, WeightsAreRoundedToTheNearestThatTheFormatHolds) {
  TestRandom random;
  for (const auto& shape : kShapes) {
    const TestLinear fp32(random, shape[0], shape[1]);
    EXPECT_TRUE(SameBits(fp32.stored, fp32.weight));
    const TestLinear bf16(random, shape[0], shape[1], Number::kBf16);
    for (size_t i = 0; i < bf16.weight.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(bf16.stored[i]) & 0xFFFF, 0U);
      EXPECT_LE(std::abs(bf16.stored[i] - bf16.weight[i]), std::abs(bf16.weight[i]) / 256);
    }
    const TestLinear int8(random, shape[0], shape[1], Number::kInt8);
    for (int64_t n = 0; n < int8.out; ++n) {
      const auto row = int8.weight.begin() + n * int8.in;
      float largest = 0;
      for (auto w = row; w != row + int8.in; ++w) largest = std::max(largest, std::abs(*w));
      for (int64_t k = 0; k < int8.in; ++k) {
        const float stored = int8.stored[static_cast<size_t>(n * int8.in + k)];
        EXPECT_LE(std::abs(stored - row[k]), largest / 127 * 0.5001F);
      }
    }
  }
}

TEST(LinearFormatTest, QuantizingQuantizedWeightsChangesNothing) {
  TestRandom random;
  for (int i = 0; i < 200; ++i) {
    std::vector<float> w = random.Normals(1 + random.Below(100), std::pow(10, i % 40 - 30));
    std::vector<int8_t> integers(w.size());
    const auto in = static_cast<int64_t>(w.size());
    const float scale = kernels::QuantizeWeightRow(w.data(), in, integers.data());
    for (size_t k = 0; k < w.size(); ++k) {
      w[k] = scale * static_cast<float>(integers[k]);
      EXPECT_EQ(double{w[k]}, double{scale} * integers[k]);
    }
    std::vector<int8_t> again(w.size());
    EXPECT_EQ(kernels::QuantizeWeightRow(w.data(), in, again.data()), scale);
    EXPECT_EQ(again, integers);
  }
}

TEST(LinearFormatTest, TiesInBf16RoundToEven) {
  TestRandom random;
  TestLinear linear(random, 3, 1, Number::kBf16);
  linear.weight = {0x1.01p0F, 0x1.03p0F, -0x1.010002p0F};  // half way, half way, just above
  linear.Pack();
  EXPECT_EQ(linear.stored, (std::vector<float>{0x1.00p0F, 0x1.04p0F, -0x1.02p0F}));
}

TEST(LinearFormatTest, PackedWeightsTakeTheBytesOfTheirFormat) {
  EXPECT_EQ(kernels::PackedWeightBytes(768, 3072, Number::kFp32), 768 * 3072 * 4 + 3072 * 4);
  EXPECT_EQ(kernels::PackedWeightBytes(768, 3072, Number::kBf16), 768 * 3072 * 2 + 3072 * 4);
  EXPECT_EQ(kernels::PackedWeightBytes(768, 3072, Number::kInt8), 768 * 3072 + 3072 * 12);
}

// Computes a product of int8 as linear.h defines it, in operations that every processor rounds
// alike.
std::vector<float> ProductOfIntegers(const TestLinear& linear, const std::vector<float>& x) {
  std::vector<float> y;
  std::vector<int8_t> w(static_cast<size_t>(linear.in));
  for (auto row = x.begin(); row != x.end(); row += linear.in) {
    float largest = 0;
    for (auto value = row; value != row + linear.in; ++value) {
      largest = std::max(largest, std::abs(*value));
    }
    for (int64_t n = 0; n < linear.out; ++n) {
      const float scale =
          kernels::QuantizeWeightRow(linear.weight.data() + n * linear.in, linear.in, w.data());
      int64_t sum = 0;
      for (int64_t k = 0; k < linear.in; ++k) {
        sum += static_cast<int64_t>(std::nearbyint(row[k] * (127 / largest))) *
               w[static_cast<size_t>(k)];
      }
      const float product = static_cast<float>(sum) * (largest / 127 * scale);
      y.push_back(product + linear.bias[static_cast<size_t>(n)]);
    }
  }
  return y;
}

// Uses the largest integers in rows so long that sums of 16 bits would overflow. Every instruction
// set must give the same bits, with and without the instructions that add four products at once.
TEST(LinearFormatTest, ProductsOfIntegersAreExactAndTheSameOnEveryInstructionSet) {
  TestRandom random;
  for (const int64_t in : {1, 3, 4, 66, 1024, 1025, 5000}) {
    TestLinear linear(random, in, 40, Number::kInt8);
    for (size_t i = 0; i < linear.weight.size(); ++i) {
      linear.weight[i] = random.Below(4) == 0 ? linear.weight[i] : random.Below(2) == 0 ? 2 : -2;
    }
    linear.Pack();
    std::vector<float> x = random.Normals(13 * in);
    for (float& value : x) value = random.Below(3) == 0 ? value : random.Below(2) == 0 ? 9 : -9;
    const std::vector<float> product = ProductOfIntegers(linear, x);
    std::vector<int64_t> sets = InstructionSets();
    for (const int64_t set : InstructionSetsWithoutDots()) sets.push_back(set);
    for (const int64_t set : InstructionSetsReadingOtherwise()) sets.push_back(set);
    for (const int64_t set : sets) {
      const UseInstructionSet use(set);
      EXPECT_TRUE(SameBits(linear.Run(x), product))
          << InstructionSetName(set) << ", " << in << " inputs";
    }
  }
}

TEST_P(LinearTest, ARowThatIsNotFiniteStaysSoAndLeavesOthersAlone) {
  for (const Number format : kFormats) {
    const TestLinear linear(random_, 50, 40, format);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t at : {0U, 33U, 49U}) {  // places in the second of three rows
        std::vector<float> x = random_.Normals(3 * linear.in);
        const std::vector<float> good = linear.Run(x);
        x[50 + at] = bad;
        const std::vector<float> y = linear.Run(x);
        for (int64_t n = 0; n < linear.out; ++n) {
          EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(linear.out + n)])) << NumberName(format);
        }
        EXPECT_TRUE(SameBits(Tokens(y, linear.out, 0, 1), Tokens(good, linear.out, 0, 1)));
        EXPECT_TRUE(SameBits(Tokens(y, linear.out, 2, 3), Tokens(good, linear.out, 2, 3)));
      }
    }
  }
}

TEST_P(LinearTest, RowsOfZerosAndOfTinyNumbersGiveTheBias) {
  for (const Number format : kFormats) {
    const TestLinear linear(random_, 50, 40, format);
    for (const float x : {0.0F, -0.0F, 1e-42F}) {
      const std::vector<float> y = linear.Run(std::vector<float>(50, x));
      for (size_t n = 0; n < y.size(); ++n) EXPECT_FLOAT_EQ(y[n], linear.bias[n]);
    }
  }
}

TEST(LinearFormatTest, AWeightThatIsNotFiniteMakesItsOutputNan) {
  TestRandom random;
  for (const Number format : kFormats) {
    TestLinear linear(random, 20, 3, format);
    linear.weight[25] = NAN;
    linear.Pack();
    const std::vector<float> y = linear.Run(random.Normals(20));
    EXPECT_TRUE(std::isfinite(y[0]) && std::isnan(y[1]) && std::isfinite(y[2]));
  }
}

// A layer y = x, with which an activation is tested alone.
TestLinear Identity(TestRandom& random) {
  TestLinear linear(random, 1, 1);
  linear.weight = {1.0F};
  linear.bias = {0.0F};
  linear.Pack();
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
INSTANTIATE_TEST_SUITE_P(WithoutDots, LinearTest, testing::ValuesIn(InstructionSetsWithoutDots()),
                         [](const auto& set) { return InstructionSetName(set.param); });
INSTANTIATE_TEST_SUITE_P(ReadingOtherwise, LinearTest,
                         testing::ValuesIn(InstructionSetsReadingOtherwise()),
                         [](const auto& set) { return InstructionSetName(set.param); });

}  // namespace
}  // namespace aft
