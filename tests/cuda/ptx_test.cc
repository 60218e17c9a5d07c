// Tests bit by bit what ptx.cuh promises. On the CPU this tests the C++ code that replaces the PTX.
// On a GPU it tests that the hardware computes the same. One test is of launch.cuh.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tests/cuda/device_array.h"
#include "tests/cuda/ptx_kernels.h"
#include "tests/property/random_inputs.h"
#include "tests/support/close.h"

namespace aft::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();

std::vector<uint32_t> Apply(PtxFunction function, const std::vector<uint32_t>& x) {
  const DeviceArray<uint32_t> device_x(x);
  const DeviceArray<uint32_t> y(x.size());
  EXPECT_EQ(RunPtx(function, device_x.get(), static_cast<int64_t>(x.size()), y.get(), nullptr), 0);
  return y.Get();
}

float ApplyOne(PtxFunction function, float x) {
  return std::bit_cast<float>(Apply(function, {std::bit_cast<uint32_t>(x)})[0]);
}

// A number format with `mantissa` bits after the point and normal exponents down to `lowest`.
struct Format {
  int mantissa;
  int lowest;
  double largest;
  bool ties_to_even;
  // If false, a NaN whose payload is only in the dropped bits may become infinity, as on an H100.
  // Arithmetic gives no such NaN.
  bool keeps_nan;

  // Rounds by arithmetic, independently of the bit operations under test.
  double Round(double x) const {
    if (x == 0.0 || !std::isfinite(x)) return x;
    const double unit = std::ldexp(1.0, std::max(std::ilogb(x), lowest) - mantissa);
    const double rounded = (ties_to_even ? std::nearbyint(x / unit) : std::round(x / unit)) * unit;
    if (std::abs(rounded) > largest) return std::copysign(HUGE_VAL, x);
    return rounded;
  }
};
const Format kBf16Format = {7, -126, 0x1.FEp127, true, true};
const Format kFp16Format = {10, -14, 65504.0, true, true};
const Format kTf32Format = {10, -126, 0x1.FFCp127, false, false};

// Returns random bits and numbers of every exponent. Next to each of the latter are the ties of a
// format with `mantissa` bits and their neighbours.
std::vector<uint32_t> Numbers(int mantissa) {
  std::vector<uint32_t> all;
  TestRandom random;
  for (int i = 0; i < 20'000; ++i) all.push_back(static_cast<uint32_t>(random.Below(1LL << 32)));
  const uint32_t half = 1U << (22 - mantissa);
  for (uint32_t sign : {0U, 0x80000000U}) {
    for (uint32_t exponent = 0; exponent < 255; ++exponent) {
      for (uint32_t step : {0U, 1U, (2U << mantissa) / 2 - 1}) {
        const uint32_t exact = sign | exponent << 23 | step * 2 * half;
        for (const uint32_t bits :
             {exact, exact + 1, exact + half - 1, exact + half, exact + half + 1}) {
          all.push_back(bits);
        }
      }
    }
    all.push_back(sign | 0x7F800000);  // infinity
  }
  return all;
}

void ExpectRounds(PtxFunction to, const Format& format,
                  const std::function<float(uint32_t)>& value) {
  const std::vector<uint32_t> x = Numbers(format.mantissa);
  const std::vector<uint32_t> y = Apply(to, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float number = std::bit_cast<float>(x[i]);
    if (std::isnan(number)) {
      constexpr uint32_t kMantissa = 0x7FFFFF;
      const bool stays = format.keeps_nan || (x[i] & kMantissa) >> (23 - format.mantissa) != 0;
      ASSERT_TRUE(!stays || std::isnan(value(y[i]))) << std::hex << x[i];
    } else {
      const double expected = format.Round(static_cast<double>(number));
      ASSERT_EQ(static_cast<double>(value(y[i])), expected) << std::hex << x[i];
      ASSERT_EQ(std::signbit(value(y[i])), std::signbit(number)) << std::hex << x[i];
    }
  }
}

float Bf16Value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
float Fp16Value(uint32_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)));
}

TEST(CudaPtx, RoundsToBf16) {
  ExpectRounds(PtxFunction::kToBf16, kBf16Format, Bf16Value);
  EXPECT_EQ(Apply(PtxFunction::kToBf16, {0x7FC00001, 0xFF800001}),
            (std::vector<uint32_t>{0x7FFF, 0x7FFF}));
}

TEST(CudaPtx, RoundsToFp16) {
  ExpectRounds(PtxFunction::kToFp16, kFp16Format, Fp16Value);
  EXPECT_EQ(Apply(PtxFunction::kToFp16, {0x7FC00001, 0xFF800001}),
            (std::vector<uint32_t>{0x7FFF, 0x7FFF}));
}

TEST(CudaPtx, RoundsToTf32) {
  ExpectRounds(PtxFunction::kToTf32, kTf32Format,
               [](uint32_t bits) { return std::bit_cast<float>(bits); });
}

TEST(CudaPtx, PacksTwoBf16) {
  const std::vector<uint32_t> x = Numbers(7);
  const std::vector<uint32_t> y = Apply(PtxFunction::kPackBf16, x);
  const std::vector<uint32_t> low = Apply(PtxFunction::kToBf16, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t high = low[i] == 0x7FFF ? 0x7FFF : low[i] ^ 0x8000U;
    ASSERT_EQ(y[i], high << 16 | low[i]) << std::hex << x[i];
  }
}

TEST(CudaPtx, ReadsAll16BitNumbers) {
  std::vector<uint32_t> all(1 << 16);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<uint32_t> from_bf16 = Apply(PtxFunction::kFromBf16, all);
  const std::vector<uint32_t> from_fp16 = Apply(PtxFunction::kFromFp16, all);
  for (uint32_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(from_bf16[i], i << 16);
    const float expected = Fp16Value(i);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(from_fp16[i]))) << i;
    } else {
      ASSERT_EQ(from_fp16[i], std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

void ExpectRelative(PtxFunction function, double low, double high, double allowed,
                    double (*exact)(double)) {
  TestRandom random;
  std::vector<uint32_t> x;
  for (int i = 0; i < 20'000; ++i) {
    x.push_back(std::bit_cast<uint32_t>(static_cast<float>(random.Uniform(low, high))));
  }
  const std::vector<uint32_t> y = Apply(function, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float argument = std::bit_cast<float>(x[i]);
    const double expected = exact(static_cast<double>(argument));
    ASSERT_NEAR(static_cast<double>(std::bit_cast<float>(y[i])), expected, allowed * expected)
        << argument;
  }
}

TEST(CudaPtx, PowersOfTwo) {
  ExpectRelative(PtxFunction::kExp2, -125.9, 127.9, 0x1p-22, [](double x) { return std::exp2(x); });
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, 0.0F), 1.0F);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, -1e-40F), 1.0F);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, -126.0F), kSmallestNormal);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, -127.0F), 0.0F);  // it would be subnormal
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, -1e30F), 0.0F);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, -kInfinity), 0.0F);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, 128.0F), kInfinity);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp2, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(ApplyOne(PtxFunction::kExp2, NAN)));
}

TEST(CudaPtx, Exponentials) {
  // Exp(x) is 2^(x log2(e)). The first tolerance allows for rounding that exponent by half an ulp
  // of numbers from 2^6 on.
  ExpectRelative(PtxFunction::kExp, -60.0, 60.0, 1e-5, [](double x) { return std::exp(x); });
  ExpectRelative(PtxFunction::kExp, -1.0, 1.0, 4e-7, [](double x) { return std::exp(x); });
  EXPECT_EQ(ApplyOne(PtxFunction::kExp, 0.0F), 1.0F);
  EXPECT_EQ(ApplyOne(PtxFunction::kExp, -kInfinity), 0.0F);
  EXPECT_TRUE(std::isnan(ApplyOne(PtxFunction::kExp, NAN)));
}

TEST(CudaPtx, Reciprocals) {
  ExpectRelative(PtxFunction::kReciprocal, 1e-6, 1.0, 0x1p-22, [](double x) { return 1.0 / x; });
  ExpectRelative(PtxFunction::kReciprocal, 1.0, 1e30, 0x1p-22, [](double x) { return 1.0 / x; });
  EXPECT_EQ(ApplyOne(PtxFunction::kReciprocal, 0.0F), kInfinity);
  EXPECT_EQ(ApplyOne(PtxFunction::kReciprocal, -0.0F), -kInfinity);
  EXPECT_EQ(ApplyOne(PtxFunction::kReciprocal, kSmallestNormal / 2), kInfinity);
  EXPECT_EQ(ApplyOne(PtxFunction::kReciprocal, 0x1p127F), 0.0F);  // it would be subnormal
  EXPECT_EQ(ApplyOne(PtxFunction::kReciprocal, kInfinity), 0.0F);
  EXPECT_TRUE(std::isnan(ApplyOne(PtxFunction::kReciprocal, NAN)));
}

// ---- Prefix sums: every kernel rounds each product and its sum once

TEST(CudaPtx, PrefixSumsAreRoundedOnce) {
  TestRandom random;
  constexpr size_t kCount = 2000;
  std::vector<float> sums;
  std::vector<float> tokens;
  std::vector<float> more;
  std::vector<uint32_t> differences;  // exponents of the weights below 1
  const auto difference = [&](float a, float b) {
    differences.push_back(std::bit_cast<uint32_t>(-std::abs(a - b)));
  };
  for (size_t i = 0; i < kCount; ++i) {
    const auto normal = [&] { return static_cast<float>(random.Normal()); };
    sums.insert(sums.end(), {normal(), 1.0F + std::abs(normal()), normal()});
    more.insert(more.end(), {normal(), 1.0F + std::abs(normal()), normal()});
    tokens.insert(tokens.end(), {normal(), normal()});
    difference(tokens[2 * i], sums[3 * i + 2]);
    difference(more[3 * i + 2], sums[3 * i + 2]);
  }
  const std::vector<uint32_t> weights = Apply(PtxFunction::kExp, differences);
  for (const bool inserts : {true, false}) {
    const DeviceArray<float> y(sums);
    const DeviceArray<float> device_tokens(tokens);
    const DeviceArray<float> device_more(more);
    ASSERT_EQ(RunPrefix(y.get(), inserts ? device_tokens.get() : nullptr, device_more.get(), kCount,
                        nullptr),
              0);
    std::vector<float> expected;
    for (size_t i = 0; i < kCount; ++i) {
      const float e = std::bit_cast<float>(weights[2 * i + (inserts ? 0 : 1)]);
      const float* const a = &sums[3 * i];
      const float one[3] = {tokens[2 * i + 1], 1.0F, tokens[2 * i]};
      const float* const b = inserts ? one : &more[3 * i];
      const bool rises = b[2] > a[2];
      for (int n = 0; n < 2; ++n) {
        expected.push_back(rises ? std::fma(a[n], e, b[n]) : std::fma(b[n], e, a[n]));
      }
      expected.push_back(std::max(a[2], b[2]));
    }
    EXPECT_EQ(y.Get(), expected) << inserts;
  }
}

// ---- Products

struct ProductCase {
  PtxProduct product;
  size_t depth;
  const Format& format;
};
const std::vector<ProductCase> kProducts = {{PtxProduct::kTf32, 8, kTf32Format},
                                            {PtxProduct::kBf16, 16, kBf16Format},
                                            {PtxProduct::kBf16Matrices, 16, kBf16Format}};

class CudaPtxProductTest : public testing::TestWithParam<ProductCase> {
 protected:
  std::vector<float> Multiply(const std::vector<float>& a, const std::vector<float>& b,
                              const std::vector<float>& c) const {
    const DeviceArray<float> device_c(c);
    EXPECT_EQ(RunPtxProduct(GetParam().product, DeviceArray<float>(a).get(),
                            DeviceArray<float>(b).get(), device_c.get(), nullptr),
              0);
    return device_c.Get();
  }
  const size_t depth_ = GetParam().depth;
  TestRandom random_;
};

TEST_P(CudaPtxProductTest, EqualsFloat64OfTheRoundedOperands) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    const std::vector<float> a = random_.Normals(static_cast<int64_t>(16 * depth_));
    const std::vector<float> b = random_.Normals(static_cast<int64_t>(depth_ * 8));
    const std::vector<float> c = random_.Normals(16 * 8);
    std::vector<double> expected(c.begin(), c.end());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (size_t k = 0; k < depth_; ++k) {
        expected[i] += GetParam().format.Round(static_cast<double>(a[i / 8 * depth_ + k])) *
                       GetParam().format.Round(static_cast<double>(b[k * 8 + i % 8]));
      }
    }
    EXPECT_TRUE(Close(Multiply(a, b, c), expected, tolerance::kReordered));
  }
}

TEST_P(CudaPtxProductTest, NaNAndInfinityStayInTheirRow) {
  std::vector<float> a(16 * depth_, 1.0F);
  a[3 * depth_ + 1] = NAN;
  a[9 * depth_ + 2] = kInfinity;
  const std::vector<float> c =
      Multiply(a, std::vector<float>(depth_ * 8, 2.0F), std::vector<float>(16 * 8, 0.0F));
  for (size_t i = 0; i < c.size(); ++i) {
    if (i / 8 == 3) {
      EXPECT_TRUE(std::isnan(c[i]));
    } else {
      EXPECT_EQ(c[i], i / 8 == 9 ? kInfinity : static_cast<float>(2 * depth_));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Products, CudaPtxProductTest, testing::ValuesIn(kProducts));

TEST(CudaPtx, ProductsOfIntegersAreExact) {
  TestRandom random;
  const auto integers = [&](size_t count) {
    std::vector<float> all(count);
    for (float& value : all) value = static_cast<float>(random.Below(256) - 128);
    return all;
  };
  for (int repeat = 0; repeat < 10; ++repeat) {
    const std::vector<float> a = integers(16 * 32);
    const std::vector<float> b = integers(32 * 8);
    const std::vector<float> c = integers(16 * 8);
    std::vector<float> expected = c;
    for (size_t i = 0; i < expected.size(); ++i) {
      for (size_t k = 0; k < 32; ++k) expected[i] += a[i / 8 * 32 + k] * b[k * 8 + i % 8];
    }
    const DeviceArray<float> sums(c);
    EXPECT_EQ(RunPtxProduct(PtxProduct::kIntegers, DeviceArray<float>(a).get(),
                            DeviceArray<float>(b).get(), sums.get(), nullptr),
              0);
    EXPECT_EQ(sums.Get(), expected);
  }
}

// Another thread's launch may come between this thread's request for more shared memory and its
// launch. 99 KiB is what the smallest devices have.
TEST(CudaLaunch, LessSharedMemoryDoesNotLowerTheKernelsLimit) {
  constexpr int64_t kMuch = int64_t{99} << 10;
  EXPECT_EQ(RunNothing(kMuch, nullptr), 0);
  EXPECT_EQ(RunNothing(kMuch - 4096, nullptr), 0);
  EXPECT_GE(SharedLimitOfNothing(), kMuch);
  EXPECT_EQ(RunNothing(int64_t{1} << 20, nullptr), 9);  // cudaErrorInvalidConfiguration
  EXPECT_GE(SharedLimitOfNothing(), kMuch);
}

}  // namespace
}  // namespace aft::kernels::cuda
