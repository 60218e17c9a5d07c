// Rows and products of int8 against the CPU's kernel, which has the same definition: the bits of
// rows, and of products before the activation, are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "model/kernels/cuda/product/product.h"
#include "model/kernels/cuda/product/quantize.h"
#include "model/kernels/cuda/rows/rows.h"
#include "model/kernels/linear/linear.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/device_matrix.h"
#include "tests/property/random_inputs.h"
#include "tests/support/activation_reference.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"

namespace aft::kernels::cuda {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

// Quantized rows on the device, which end with the last integer of the last row.
class QuantizedMatrix {
 public:
  QuantizedMatrix(int64_t rows, int64_t width)
      : width_(width), bytes_(static_cast<size_t>(rows * QuantizedStride(width))) {}

  In in() const { return {bytes_.get() + kScaleBytes, Number::kInt8, QuantizedStride(width_)}; }
  Out out() const { return {bytes_.get() + kScaleBytes, Number::kInt8, QuantizedStride(width_)}; }

  // For each row its scale, then its integers. Checks that the bytes between them are untouched.
  std::vector<std::vector<float>> Get() const {
    const std::vector<int8_t> bytes = bytes_.Get();
    const auto stride = static_cast<size_t>(QuantizedStride(width_));
    std::vector<std::vector<float>> rows;
    for (size_t row = 0; row < bytes.size(); row += stride) {
      std::vector<float>& read = rows.emplace_back(1);
      std::memcpy(read.data(), &bytes[row], sizeof(float));
      for (size_t i = sizeof(float); i < kScaleBytes; ++i) EXPECT_EQ(bytes[row + i], -1);
      const auto first = bytes.begin() + static_cast<int64_t>(row) + kScaleBytes;
      read.insert(read.end(), first, first + width_);
    }
    return rows;
  }

 private:
  int64_t width_;
  DeviceArray<int8_t> bytes_;
};

// The definition (model/kernels/linear/linear_rows.h): the scale and the integers of a row.
std::vector<float> Quantized(const std::vector<float>& x) {
  float largest = 0;
  bool finite = true;
  for (const float value : x) {
    largest = std::max(largest, std::abs(value));
    finite = finite && std::isfinite(value);
  }
  std::vector<float> row = {finite ? largest / 127 : kNotANumber};
  const bool zeros = !finite || largest <= 1e-36F;
  for (const float value : x) {
    row.push_back(zeros ? 0 : std::nearbyint(value * (127 / largest)) + 0.0F);
  }
  return row;
}

void ExpectRow(const std::vector<float>& got, const std::vector<float>& x) {
  const std::vector<float> expected = Quantized(x);
  if (std::isnan(expected[0])) {
    EXPECT_TRUE(std::isnan(got[0]));
  } else {
    EXPECT_EQ(got[0], expected[0]);
  }
  EXPECT_TRUE(std::equal(got.begin() + 1, got.end(), expected.begin() + 1, expected.end()));
}

struct alignas(64) Line {
  unsigned char bytes[64];
};
std::vector<Line> Lines(int64_t bytes) {
  return std::vector<Line>(static_cast<size_t>((bytes + 63) / 64));
}

class CudaInt8Test : public testing::Test {
 protected:
  struct Layer {
    Layer(TestRandom& random, int64_t width, int64_t rows)
        : Layer(random.Normals(width * rows, 1.0 / std::sqrt(width)), random.Normals(rows), width) {
    }
    Layer(const std::vector<float>& of, const std::vector<float>& with, int64_t width)
        : weight(of),
          bias(with),
          in(width),
          out(static_cast<int64_t>(with.size())),
          integers(static_cast<size_t>(out * QuantizedColumns(in))),
          scales(static_cast<size_t>(out)),
          device_bias(bias) {
      std::vector<int8_t> rows(integers.size(), 0);
      std::vector<float> all;
      for (int64_t n = 0; n < out; ++n) {
        all.push_back(QuantizeWeightRow(&weight[static_cast<size_t>(n * in)], in,
                                        &rows[static_cast<size_t>(n * QuantizedColumns(in))]));
      }
      integers.Set(rows);
      scales.Set(all);
    }
    ProductModel Model(Activation activation = Activation::kNone) const {
      return {QuantizedColumns(in), out,        integers.get(),
              device_bias.get(),    activation, scales.get()};
    }
    // Returns the CPU's result, dense.
    std::vector<float> OnCpu(const std::vector<float>& x) const {
      std::vector<Line> packed = Lines(PackedWeightBytes(in, out, Number::kInt8));
      const PackedWeight linear =
          PackLinear(weight.data(), bias.data(), in, out, Number::kInt8, packed.data());
      LinearRows rows = {x.data(), in, static_cast<int64_t>(x.size()) / in};
      std::vector<Line> quantized = Lines(rows.rows * QuantizedBytes(Number::kInt8, in));
      kernels::QuantizeRows(Number::kInt8, rows, in, 0, rows.rows, quantized.data());
      rows.quantized = quantized.data();
      std::vector<float> y(static_cast<size_t>(rows.rows * out));
      Linear(linear, rows, y.data(), out, Activation::kNone, 0, LinearPanels(out));
      return y;
    }

    std::vector<float> weight;
    std::vector<float> bias;
    int64_t in;
    int64_t out;
    DeviceArray<int8_t> integers;
    DeviceArray<float> scales;
    DeviceArray<float> device_bias;
  };

  static std::vector<float> Multiply(const Layer& layer, const std::vector<float>& x,
                                     Activation activation = Activation::kNone) {
    const int64_t count = static_cast<int64_t>(x.size()) / layer.in;
    const DeviceMatrix rows(x, layer.in, Number::kFp32);
    const QuantizedMatrix quantized(count, layer.in);
    EXPECT_EQ(QuantizeRows({layer.in}, rows.in(), count, quantized.out(), nullptr), 0);
    const DeviceMatrix y(std::vector<float>(static_cast<size_t>(count * layer.out), 77.0F),
                         layer.out, Number::kFp32, layer.out + 3);
    EXPECT_EQ(MultiplyInt8(layer.Model(activation), quantized.in(), count, y.out(), nullptr), 0);
    return y.Get();
  }

  TestRandom random_;
};

TEST_F(CudaInt8Test, RowsAreQuantizedAsOnTheCpu) {
  for (const int64_t width : {1, 3, 4, 16, 21, 64, 100, 1030, 1024, 3001}) {
    std::vector<std::vector<float>> rows;
    for (const double spread : {1.0, 1e-3, 1e30, 0.0, 1e-38, 1e-42}) {
      rows.push_back(random_.Normals(width, spread));
    }
    for (const float bad : {kNotANumber, kInfinite, -kInfinite}) {
      rows.push_back(random_.Normals(width));
      rows.back()[static_cast<size_t>(random_.Below(width))] = bad;
    }
    std::vector<float> x;
    for (const std::vector<float>& row : rows) x.insert(x.end(), row.begin(), row.end());
    for (const int64_t gap : {0, 1, 4}) {
      const DeviceMatrix from(x, width, Number::kFp32, width + gap);
      const QuantizedMatrix to(static_cast<int64_t>(rows.size()), width);
      ASSERT_EQ(
          QuantizeRows({width}, from.in(), static_cast<int64_t>(rows.size()), to.out(), nullptr),
          0);
      const std::vector<std::vector<float>> got = to.Get();
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "width " << width << ", gap " << gap << ", row " << i);
        ExpectRow(got[i], rows[i]);
      }
    }
  }
}

TEST_F(CudaInt8Test, PartsOfARowHaveTheirOwnScalesAndFunctions) {
  const std::vector<int32_t> begin = {0, 32, 48, 96};
  constexpr int64_t kWidth = 96;
  constexpr int64_t kRows = 3;
  const std::vector<ColumnFunction> kinds = {ColumnFunction::kTanh, ColumnFunction::kSigmoid,
                                             ColumnFunction::kNone};
  std::vector<ColumnFunction> functions;
  for (size_t part = 0; part < kinds.size(); ++part) {
    functions.resize(static_cast<size_t>(begin[part + 1]), kinds[part]);
  }
  const std::vector<float> x = random_.Normals(kRows * kWidth);
  const DeviceMatrix from(x, kWidth, Number::kFp32);
  const DeviceMatrix applied(kRows, kWidth, Number::kFp32);
  const DeviceArray<ColumnFunction> device_functions(functions);
  const DeviceArray<int32_t> device_begin(begin);
  ASSERT_EQ(ApplyToColumns(static_cast<const float*>(from.in().data), device_functions.get(), kRows,
                           kWidth, applied.out(), nullptr),
            0);
  const std::vector<float> values = applied.Get();
  const auto parts = static_cast<int64_t>(kinds.size());
  const int64_t stride = kWidth + parts * kScaleBytes;
  const DeviceArray<int8_t> to(static_cast<size_t>(kRows * stride));
  ASSERT_EQ(QuantizeRows({kWidth, parts, device_begin.get(), device_functions.get()}, from.in(),
                         kRows, {to.get() + kScaleBytes, Number::kInt8, stride}, nullptr),
            0);
  const std::vector<int8_t> bytes = to.Get();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = begin[static_cast<size_t>(part)];
      const int64_t past = begin[static_cast<size_t>(part + 1)];
      const auto head = bytes.begin() + row * stride + first + part * kScaleBytes;
      std::vector<float> got(1);
      std::memcpy(got.data(), &*head, sizeof(float));
      got.insert(got.end(), head + kScaleBytes, head + kScaleBytes + past - first);
      const auto own = values.begin() + row * kWidth;
      ExpectRow(got, {own + first, own + past});
    }
  }
}

TEST_F(CudaInt8Test, ANormQuantizesItsResult) {
  for (const int64_t width : {1, 4, 33, 64, 256, 500, 513, 1001, 1024, 4100}) {
    for (const bool adds : {true, false}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", adds " << adds);
      constexpr int64_t kRows = 3;
      std::vector<float> x = random_.Normals(kRows * width);
      x[static_cast<size_t>(width)] = kNotANumber;
      const DeviceArray<float> weight(random_.Normals(width));
      const DeviceArray<float> bias(random_.Normals(width));
      const DeviceMatrix branch(random_.Normals(kRows * width), width, Number::kFp32);
      const DeviceMatrix y(kRows, width, Number::kFp32);
      const QuantizedMatrix quantized(kRows, width);
      const auto norm = [&](Out to) {
        const DeviceArray<float> rows(x);
        EXPECT_EQ(AddNorm({width, weight.get(), bias.get()}, rows.get(), adds ? branch.in() : In(),
                          nullptr, kRows, to, nullptr),
                  0);
      };
      norm(y.out());
      norm(quantized.out());
      const std::vector<float> floats = y.Get();
      const std::vector<std::vector<float>> got = quantized.Get();
      for (int64_t row = 0; row < kRows; ++row) {
        const auto first = floats.begin() + row * width;
        ExpectRow(got[static_cast<size_t>(row)], {first, first + width});
      }
    }
  }
}

TEST_F(CudaInt8Test, ATableIsLookedUpAsOnTheCpu) {
  constexpr int64_t kRows = 5;
  for (const int64_t width : {1, 16, 33, 100}) {
    const Layer table(random_, width, kRows);
    const EmbedModel model = {width,   table.integers.get(), Number::kInt8, 2.5F, nullptr,
                              nullptr, table.scales.get()};
    const std::vector<int32_t> ids = {4, 0, 2};
    const DeviceArray<float> x(ids.size() * static_cast<size_t>(width));
    ASSERT_EQ(
        Embed(model, DeviceArray<int32_t>(ids).get(),
              DeviceArray<int32_t>(std::vector<int32_t>{0, 1, -1}).get(),
              DeviceArray<int64_t>(std::vector<int64_t>(3, 0)).get(), nullptr, 3, x.get(), nullptr),
        0);
    std::vector<Line> packed = Lines(PackedWeightBytes(width, kRows, Number::kInt8));
    const PackedWeight linear =
        PackLinear(table.weight.data(), nullptr, width, kRows, Number::kInt8, packed.data());
    std::vector<float> expected(x.size(), 0.0F);
    for (const size_t row : {0U, 1U}) {
      float* const vector = &expected[row * static_cast<size_t>(width)];
      UnpackOutput(linear, ids[row], vector);
      for (int64_t c = 0; c < width; ++c) vector[c] *= 2.5F;
    }
    EXPECT_TRUE(SameBits(x.Get(), expected)) << width;
  }
}

TEST_F(CudaInt8Test, ProductsHaveTheBitsOfTheCpuForAllSizes) {
  for (const int64_t in : {1, 16, 21, 64, 100, 250, 1024, 2100, 4200}) {
    for (const int64_t out : {1, 8, 19, 70}) {
      const Layer layer(random_, in, out);
      for (const int64_t count : {1, 7, 9, 16, 17, 33, 130}) {
        if (in > 300 && (count > 33 || out == 8)) continue;
        SCOPED_TRACE(testing::Message() << in << " to " << out << ", " << count << " rows");
        const std::vector<float> x = random_.Normals(count * in);
        EXPECT_TRUE(SameBits(Multiply(layer, x), layer.OnCpu(x)));
      }
    }
  }
}

// A product of many rows and outs has larger tiles. (These are the smallest ones that do.)
TEST_F(CudaInt8Test, LargerTilesHaveTheBitsOfTheCpuToo) {
  struct Size {
    int64_t in, out, count;
  };
  for (const Size& size : {Size{330, 1531, 950}, Size{20, 1530, 900}, Size{700, 4091, 41}}) {
    const Layer layer(random_, size.in, size.out);
    const std::vector<float> x = random_.Normals(size.count * size.in);
    EXPECT_TRUE(SameBits(Multiply(layer, x), layer.OnCpu(x))) << size.count << " rows";
  }
}

TEST_F(CudaInt8Test, SumsOfTheLargestIntegersAreExact) {
  constexpr int64_t kIn = 4096;
  const Layer layer(std::vector<float>(kIn, 2.0F), {0.0F}, kIn);
  for (const int64_t count : {2, 20}) {
    const std::vector<float> x(static_cast<size_t>(count * kIn), -3.0F);
    EXPECT_TRUE(SameBits(Multiply(layer, x), layer.OnCpu(x))) << count;
  }
}

TEST_F(CudaInt8Test, AddsTheBiasBeforeItActivates) {
  const Layer layer(random_, 72, 21);
  for (const int64_t count : {5, 20}) {
    const std::vector<float> x = random_.Normals(count * 72);
    for (const Activation activation :
         {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSquaredRelu}) {
      std::vector<double> expected;
      for (const float sum : layer.OnCpu(x)) expected.push_back(Activated(activation, double{sum}));
      EXPECT_TRUE(Close(Multiply(layer, x, activation), expected, tolerance::kFewOperations))
          << static_cast<int>(activation) << ", " << count;
    }
  }
}

TEST_F(CudaInt8Test, WhatIsNotFiniteStaysInItsRowAndItsColumn) {
  std::vector<float> weight = random_.Normals(64 * 9);
  weight[4 * 64 + 1] = kInfinite;
  const Layer layer(weight, random_.Normals(9), 64);
  for (const int64_t count : {3, 20}) {
    std::vector<float> x = random_.Normals(count * 64);
    x[64 + 5] = kNotANumber;
    const std::vector<float> y = Multiply(layer, x);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 9 == 1 || i % 9 == 4);
  }
}

TEST_F(CudaInt8Test, RefusesWhatItCannotReadOrWrite) {
  const Layer layer(random_, 64, 9);
  constexpr int64_t kRows = 20;
  const QuantizedMatrix x(kRows, 64);
  const DeviceMatrix y(kRows, 64, Number::kFp32);
  for (const int64_t count : {int64_t{1}, kRows}) {
    const auto refused = [&](const ProductModel& model, In in, Out out) {
      EXPECT_NE(MultiplyInt8(model, in, count, out, nullptr), 0) << count;
    };
    refused(layer.Model(), x.in(), {y.out().data, Number::kBf16, 64});
    refused(layer.Model(), {x.in().data, Number::kBf16, 64}, y.out());
    refused(layer.Model(), {x.in().data, Number::kInt8, 72}, y.out());
    ProductModel narrow = layer.Model();
    narrow.in = 60;
    refused(narrow, x.in(), y.out());
  }
  EXPECT_NE(MultiplyInt8(layer.Model(), x.in(), -1, y.out(), nullptr), 0);
  EXPECT_EQ(MultiplyInt8(layer.Model(), x.in(), 0, y.out(), nullptr), 0);
  EXPECT_NE(QuantizeRows({64}, {y.in().data, Number::kBf16, 64}, 1, x.out(), nullptr), 0);
  EXPECT_NE(QuantizeRows({64}, y.in(), 1, {x.out().data, Number::kInt8, 72}, nullptr), 0);
  EXPECT_NE(QuantizeRows({0}, y.in(), 1, x.out(), nullptr), 0);
  const DeviceArray<float> rows(64);
  EXPECT_NE(AddNorm({64, rows.get(), rows.get()}, rows.get(), {y.in().data, Number::kBf16, 64},
                    nullptr, 1, x.out(), nullptr),
            0);
}

}  // namespace
}  // namespace aft::kernels::cuda
