// Compares the operators between the matrix products with float64, for all number types and widths.
#include "model/kernels/cuda/rows/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/close.h"

namespace aft::kernels::cuda {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<std::pair<Number, Number>> kNumbers = {{Number::kFp32, Number::kFp32},
                                                         {Number::kFp32, Number::kBf16},
                                                         {Number::kFp32, Number::kFp16},
                                                         {Number::kBf16, Number::kBf16},
                                                         {Number::kFp16, Number::kFp16}};

// The stride is 16 above the width, so that groups of columns stay aligned.
int64_t Stride(int64_t width) { return width + 16; }

void ExpectWithin(Number out, const std::vector<double>& reference, const std::vector<float>& y) {
  EXPECT_TRUE(Close(y, reference,
                    out == Number::kFp32   ? tolerance::kLinear
                    : out == Number::kBf16 ? tolerance::kBf16
                                           : tolerance::kFp16));
}

// ---- AddNorm

struct Norms {
  std::vector<double> x;
  std::vector<double> y;
};

// `branch` may be empty.
Norms ReferenceAddNorm(const std::vector<float>& x, const std::vector<float>& branch,
                       const std::vector<float>& branch_bias, const std::vector<float>& weight,
                       const std::vector<float>& bias, double eps) {
  const size_t width = weight.size();
  Norms norms{{x.begin(), x.end()}, std::vector<double>(x.size())};
  for (size_t i = 0; i < branch.size(); ++i) {
    norms.x[i] += static_cast<double>(branch[i]) + static_cast<double>(branch_bias[i % width]);
  }
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0.0;
    for (size_t c = 0; c < width; ++c) mean += norms.x[row + c] / static_cast<double>(width);
    double variance = 0.0;
    for (size_t c = 0; c < width; ++c) {
      variance += std::pow(norms.x[row + c] - mean, 2) / static_cast<double>(width);
    }
    for (size_t c = 0; c < width; ++c) {
      norms.y[row + c] =
          (norms.x[row + c] - mean) / std::sqrt(variance + eps) * static_cast<double>(weight[c]) +
          static_cast<double>(bias[c]);
    }
  }
  return norms;
}

class CudaAddNormTest : public testing::Test {
 protected:
  void SetWidth(int64_t width) {
    width_ = width;
    weight_ = random_.Normals(width);
    bias_ = random_.Normals(width);
    branch_bias_ = random_.Normals(width);
  }

  // Returns x after the residual sum with branch and bias. Sets *y to its norm in format `out`.
  std::vector<float> Run(const std::vector<float>& x, In branch, std::vector<float>* y,
                         Number out = Number::kFp32) {
    const DeviceArray<float> weight(weight_);
    const DeviceArray<float> bias(bias_);
    const DeviceArray<float> branch_bias(branch_bias_);
    const DeviceArray<float> device_x(x);
    const int64_t count = static_cast<int64_t>(x.size()) / width_;
    const DeviceMatrix device_y(count, width_, out, Stride(width_));
    EXPECT_EQ(AddNorm({width_, weight.get(), bias.get(), 1e-5F}, device_x.get(), branch,
                      branch_bias.get(), count, device_y.out(), nullptr),
              0);
    *y = device_y.Get();
    return device_x.Get();
  }

  // `branch` may be empty.
  Norms Reference(const std::vector<float>& x, const std::vector<float>& branch) const {
    return ReferenceAddNorm(x, branch, branch_bias_, weight_, bias_, 1e-5);
  }

  TestRandom random_;
  int64_t width_ = 0;
  std::vector<float> weight_;
  std::vector<float> bias_;
  std::vector<float> branch_bias_;
};

TEST_F(CudaAddNormTest, EqualsFloat64ForAllNumbersAndWidths) {
  for (const int64_t width : {1,   2,    4,    33,   64,   100,  252,  256,  260,  333, 512,
                              768, 1000, 1001, 1024, 1028, 2047, 2048, 4096, 8191, 8192}) {
    SetWidth(width);
    for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", to " << static_cast<int>(out));
      const std::vector<float> x = random_.Normals(3 * width, 3.0);
      const DeviceMatrix branch(random_.Normals(3 * width), width, Number::kFp32, Stride(width));
      const Norms expected = Reference(x, branch.Get());
      std::vector<float> y;
      ExpectWithin(Number::kFp32, expected.x, Run(x, branch.in(), &y, out));
      ExpectWithin(out, expected.y, y);
    }
  }
}

TEST_F(CudaAddNormTest, AlsoWithoutBranchOrBias) {
  for (const int64_t width : {33, 64, 2048}) {
    SCOPED_TRACE(width);
    SetWidth(width);
    const std::vector<float> x = random_.Normals(5 * width);
    std::vector<float> y;
    EXPECT_EQ(Run(x, {}, &y), x);  // without a branch its bias is not added either
    ExpectWithin(Number::kFp32, Reference(x, {}).y, y);

    const DeviceArray<float> weight(weight_);
    const DeviceArray<float> bias(bias_);
    const DeviceArray<float> device_x(x);
    const DeviceMatrix branch(random_.Normals(5 * width), width, Number::kFp32);
    const DeviceMatrix device_y(5, width, Number::kFp32);
    ASSERT_EQ(AddNorm({width, weight.get(), bias.get(), 1e-5F}, device_x.get(), branch.in(),
                      nullptr, 5, device_y.out(), nullptr),
              0);
    branch_bias_.assign(branch_bias_.size(), 0.0F);
    const Norms expected = Reference(x, branch.Get());
    ExpectWithin(Number::kFp32, expected.x, device_x.Get());
    ExpectWithin(Number::kFp32, expected.y, device_y.Get());
  }
}

TEST_F(CudaAddNormTest, ALargeMeanLosesNoAccuracy) {
  for (const int64_t width : {256, 4096}) {
    SetWidth(width);
    std::vector<float> x = random_.Normals(2 * width);
    for (float& value : x) value += 1000.0F;
    std::vector<float> y;
    Run(x, {}, &y);
    // A variance computed as the mean of squares minus the squared mean would be off by 0.1.
    EXPECT_TRUE(Close(y, Reference(x, {}).y, tolerance::kLayerNorm1000));
  }
}

TEST_F(CudaAddNormTest, ARowIsTheSameBitsWhateverItsNeighbours) {
  for (const int64_t width : {33, 512, 1024, 2048}) {
    SCOPED_TRACE(width);
    SetWidth(width);
    const int64_t count = width <= 512 ? 520 : 7;  // 520: more than one row in a block
    const std::vector<float> x = random_.Normals(count * width);
    const std::vector<float> branch = random_.Normals(count * width);
    std::vector<float> together;
    Run(x, DeviceMatrix(branch, width, Number::kFp32).in(), &together);
    for (const int64_t row : {int64_t{0}, count / 2, count - 1}) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + row * width, all.begin() + (row + 1) * width);
      };
      std::vector<float> alone;
      Run(part(x), DeviceMatrix(part(branch), width, Number::kFp32).in(), &alone);
      EXPECT_EQ(alone, part(together));
    }
  }
}

TEST_F(CudaAddNormTest, NaNStaysInItsRow) {
  for (const float bad : {kNaN, kInfinity}) {
    SetWidth(64);
    std::vector<float> x = random_.Normals(3 * 64);
    x[64 + 5] = bad;
    std::vector<float> y;
    Run(x, DeviceMatrix(random_.Normals(3 * 64), 64, Number::kFp32).in(), &y);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 64 == 1) << i;
  }
}

TEST_F(CudaAddNormTest, RefusesWhatItCannotDo) {
  DeviceArray<float> x(64);
  const DeviceMatrix y(1, 64, Number::kFp32);
  for (const Number type : {Number::kBf16, Number::kFp16}) {
    const DeviceMatrix branch(1, 64, type);
    const DeviceMatrix same(1, 64, type);
    EXPECT_NE(AddNorm({64}, x.get(), branch.in(), nullptr, 1, y.out(), nullptr), 0);
    EXPECT_NE(AddNorm({64}, x.get(), branch.in(), nullptr, 1, same.out(), nullptr), 0);
  }
  EXPECT_NE(AddNorm({0}, x.get(), {}, nullptr, 1, y.out(), nullptr), 0);
  EXPECT_NE(AddNorm({8193}, x.get(), {}, nullptr, 1, y.out(), nullptr), 0);
  EXPECT_NE(AddNorm({64}, x.get(), {}, nullptr, -1, y.out(), nullptr), 0);
  EXPECT_EQ(AddNorm({64}, x.get(), {}, nullptr, 0, y.out(), nullptr), 0);
}

// ---- BiasActivation

TEST(CudaBiasActivation, EqualsFloat64ForAllNumbersAndWidths) {
  TestRandom random;
  constexpr int64_t kCount = 5;
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                      Activation::kGeluTanh, Activation::kSquaredRelu}) {
    for (const int64_t width : {1, 8, 12, 33, 64, 1000, 4096}) {
      for (const auto& [in, out] : kNumbers) {
        for (const bool with_bias : {true, false}) {
          SCOPED_TRACE(testing::Message()
                       << "activation " << static_cast<int>(activation) << ", width " << width
                       << ", numbers " << static_cast<int>(in) << " to " << static_cast<int>(out));
          const DeviceMatrix x(random.Normals(kCount * width, 3.0), width, in, Stride(width));
          const std::vector<float> bias = random.Normals(width);
          const DeviceArray<float> device_bias(bias);
          const DeviceMatrix y(kCount, width, out, Stride(width));
          std::vector<double> expected;
          for (const float value : x.Get()) {
            const double added =
                with_bias ? static_cast<double>(bias[expected.size() % bias.size()]) : 0.0;
            expected.push_back(Activated(activation, static_cast<double>(value) + added));
          }
          ASSERT_EQ(BiasActivation(x.in(), with_bias ? device_bias.get() : nullptr, activation,
                                   kCount, width, y.out(), nullptr),
                    0);
          ExpectWithin(out, expected, y.Get());
        }
      }
    }
  }
}

TEST(CudaBiasActivation, LargeInputsSaturateAndNaNStaysWhereItIs) {
  for (const Activation activation :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh}) {
    const std::vector<float> values = {-1e30F, -1e4F, -100.0F, -0.0F, 0.0F,
                                       100.0F, 1e4F,  1e30F,   kNaN,  kInfinity};
    const DeviceMatrix x(values, 10, Number::kFp32);
    ASSERT_EQ(BiasActivation(x.in(), nullptr, activation, 1, 10, x.out(), nullptr), 0);
    const std::vector<float> y = x.Get();
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(y[i], 0.0F) << values[i];
    for (size_t i = 5; i < 8; ++i) EXPECT_EQ(y[i], values[i]);
    EXPECT_TRUE(std::isnan(y[8]));
    EXPECT_EQ(y[9], kInfinity);
  }
}

TEST(CudaBiasActivation, WorksInPlace) {
  TestRandom random;
  const std::vector<float> values = random.Normals(9 * 72);
  const DeviceMatrix x(values, 72, Number::kBf16);
  const DeviceMatrix y(9, 72, Number::kBf16);
  const DeviceArray<float> bias(random.Normals(72));
  ASSERT_EQ(BiasActivation(x.in(), bias.get(), Activation::kGelu, 9, 72, y.out(), nullptr), 0);
  ASSERT_EQ(BiasActivation(x.in(), bias.get(), Activation::kGelu, 9, 72, x.out(), nullptr), 0);
  EXPECT_EQ(x.Get(), y.Get());
}

// ---- GatherRows

TEST(CudaGatherRows, CopiesTheBitsOfTheRowsThatAreNamed) {
  TestRandom random;
  for (const Number type : {Number::kFp32, Number::kBf16, Number::kFp16}) {
    for (const int64_t width : {7, 64, 1032}) {
      const DeviceMatrix x(random.Normals(6 * width), width, type, Stride(width));
      const std::vector<int64_t> index = {5, -1, 0, 0, 3};
      const DeviceArray<int64_t> device_index(index);
      const DeviceMatrix y(5, width, type);
      ASSERT_EQ(GatherRows(x.in(), device_index.get(), 5, width, y.out(), nullptr), 0);
      const std::vector<float> from = x.Get();
      std::vector<float> expected;
      for (const int64_t row : index) {
        for (int64_t c = 0; c < width; ++c) {
          expected.push_back(row < 0 ? 0.0F : from[static_cast<size_t>(row * width + c)]);
        }
      }
      EXPECT_EQ(y.Get(), expected);
    }
  }
}

// ---- Embed

struct EmbedCase {
  std::vector<int32_t> tokens = {3, 0, kLastSampledToken, 6, 1};
  std::vector<int32_t> slots = {2, 0, 1, -1, 3};
  std::vector<int64_t> positions = {0, 1, 9, 5, 7};
  std::vector<int32_t> last_sampled = {0, 4, 0, 2};

  int64_t Token(size_t row) const {
    return tokens[row] == kLastSampledToken ? last_sampled[static_cast<size_t>(slots[row])]
                                            : tokens[row];
  }
  std::vector<float> Run(const EmbedModel& model) const {
    const int64_t count = static_cast<int64_t>(tokens.size());
    const DeviceArray<float> x(static_cast<size_t>(count * model.width));
    EXPECT_EQ(Embed(model, DeviceArray<int32_t>(tokens).get(), DeviceArray<int32_t>(slots).get(),
                    DeviceArray<int64_t>(positions).get(), DeviceArray<int32_t>(last_sampled).get(),
                    count, x.get(), nullptr),
              0);
    return x.Get();
  }
};

TEST(CudaEmbed, LooksUpTokensLastSampledTokensAndLearnedPositions) {
  TestRandom random;
  const EmbedCase rows;
  constexpr int64_t kVocabulary = 7;
  for (const Number type : {Number::kFp32, Number::kBf16, Number::kFp16}) {
    for (const int64_t width : {1, 33, 64, 1000}) {
      const DeviceMatrix table(random.Normals(kVocabulary * width), width, type);
      const std::vector<float> learned = random.Normals(10 * width);
      const DeviceArray<float> device_learned(learned);
      for (const bool positions : {false, true}) {
        const EmbedModel model = {width, table.in().data, type, 2.5F,
                                  positions ? device_learned.get() : nullptr};
        const std::vector<float> embed = table.Get();
        std::vector<double> expected;
        for (size_t row = 0; row < rows.tokens.size(); ++row) {
          for (int64_t c = 0; c < width; ++c) {
            double value = 0.0;
            if (rows.slots[row] >= 0) {
              value = 2.5 *
                      static_cast<double>(embed[static_cast<size_t>(rows.Token(row) * width + c)]);
              if (positions) {
                value += static_cast<double>(
                    learned[static_cast<size_t>(rows.positions[row] * width + c)]);
              }
            }
            expected.push_back(value);
          }
        }
        EXPECT_TRUE(Close(rows.Run(model), expected, tolerance::kFewOperations));
      }
    }
  }
}

TEST(CudaEmbed, WavesAreExactAtFarPositions) {
  EmbedCase rows;
  rows.positions = {0, 1, 1'000'000, 5, 123'456'789};
  for (const int64_t width : {5, 64}) {
    std::vector<double> frequencies;
    for (int64_t c = 0; c < width; c += 2) {
      frequencies.push_back(
          std::pow(10000.0, -static_cast<double>(c) / static_cast<double>(width)));
    }
    const DeviceArray<double> device_frequencies(frequencies);
    const DeviceMatrix table(std::vector<float>(static_cast<size_t>(7 * width), 0.0F), width,
                             Number::kFp32);
    std::vector<double> expected;
    for (size_t row = 0; row < rows.tokens.size(); ++row) {
      for (int64_t c = 0; c < width; ++c) {
        const double angle =
            static_cast<double>(rows.positions[row]) * frequencies[static_cast<size_t>(c / 2)];
        expected.push_back(rows.slots[row] < 0 ? 0.0
                                               : (c % 2 == 0 ? std::sin(angle) : std::cos(angle)));
      }
    }
    const EmbedModel model = {width, table.in().data, Number::kFp32,
                              1.0F,  nullptr,         device_frequencies.get()};
    EXPECT_TRUE(Close(rows.Run(model), expected, tolerance::kFewOperations));
  }
}

}  // namespace
}  // namespace aft::kernels::cuda
