#include "model/kernels/linear/packed_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace aft::kernels {
namespace {

// The nearest bf16, ties to even. NaN is handled apart, because a carry could make it infinite.
uint16_t ToBf16(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Calls fn(k, place) for every input k of output n; `place` is in numbers from the weight's start.
template <Number kFormat, typename Fn>
void ForEachInput(int64_t in, int64_t n, const Fn& fn) {
  constexpr int64_t kNeighbours = SpecOf(kFormat).neighbours;
  int64_t place =
      n / kPanel * (PanelBytes(in, kFormat) / NumberBytes(kFormat)) + n % kPanel * kNeighbours;
  int64_t k = 0;
  for (; k + kNeighbours <= in; k += kNeighbours, place += kPanel * kNeighbours) {
    for (int64_t i = 0; i < kNeighbours; ++i) fn(k + i, place + i);
  }
  for (; k < in; ++k, ++place) fn(k, place);
}

}  // namespace

float QuantizeWeightRow(const float* w, int64_t in, int8_t* integers) {
  float largest = 0.0F;
  bool finite = true;
  for (int64_t k = 0; k < in; ++k) {
    largest = std::max(largest, std::abs(w[k]));
    finite = finite && std::isfinite(w[k]);
  }
  std::fill_n(integers, in, int8_t{0});
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const auto bits = std::bit_cast<uint32_t>(largest / kInt8Most);
  const auto scale = std::bit_cast<float>((bits + 0xFF) & ~0xFFU);
  if (scale == 0.0F) return scale;
  for (int64_t k = 0; k < in; ++k) {
    integers[k] =
        static_cast<int8_t>(std::clamp(std::nearbyint(w[k] / scale), -kInt8Most, kInt8Most));
  }
  return scale;
}

int64_t PackedWeightBytes(int64_t in, int64_t out, Number format) {
  const int64_t panels = LinearPanels(out);
  const int64_t vectors = format == Number::kInt8 ? 3 : 1;  // bias, scales, sums
  return panels * PanelBytes(in, format) + vectors * panels * kPanel * 4;
}

PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, void* packed) {
  std::memset(packed, 0, static_cast<size_t>(PackedWeightBytes(in, out, format)));
  const int64_t panels = LinearPanels(out);
  auto* const packed_bias = reinterpret_cast<float*>(static_cast<unsigned char*>(packed) +
                                                     panels * PanelBytes(in, format));
  float* const scales = packed_bias + panels * kPanel;
  auto* const sums = reinterpret_cast<int32_t*>(scales + panels * kPanel);
  std::vector<int8_t> integers(format == Number::kInt8 ? static_cast<size_t>(in) : 0);
  for (int64_t n = 0; n < out; ++n) {
    const float* const row = weight + n * in;
    if (bias != nullptr) packed_bias[n] = bias[n];
    if (format == Number::kInt8) scales[n] = QuantizeWeightRow(row, in, integers.data());
    switch (format) {
      case Number::kInt8:
        ForEachInput<Number::kInt8>(in, n, [&](int64_t k, int64_t place) {
          const int8_t integer = integers[static_cast<size_t>(k)];
          static_cast<int8_t*>(packed)[place] = integer;
          sums[n] += integer;
        });
        break;
      case Number::kBf16:
        ForEachInput<Number::kBf16>(in, n, [&](int64_t k, int64_t place) {
          static_cast<uint16_t*>(packed)[place] = ToBf16(row[k]);
        });
        break;
      default:
        ForEachInput<Number::kFp32>(
            in, n, [&](int64_t k, int64_t place) { static_cast<float*>(packed)[place] = row[k]; });
    }
  }
  return {format, packed, in, out};
}

void UnpackOutput(const PackedWeight& linear, int64_t n, float* w) {
  switch (linear.format) {
    case Number::kInt8: {
      const float scale = Int8Vectors(linear).scales[n];
      const auto* const integers = static_cast<const int8_t*>(linear.bytes);
      ForEachInput<Number::kInt8>(linear.in, n, [=](int64_t k, int64_t place) {
        w[k] = scale * static_cast<float>(integers[place]);
      });
      break;
    }
    case Number::kBf16: {
      const auto* const numbers = static_cast<const uint16_t*>(linear.bytes);
      ForEachInput<Number::kBf16>(linear.in, n, [=](int64_t k, int64_t place) {
        w[k] = std::bit_cast<float>(uint32_t{numbers[place]} << 16);
      });
      break;
    }
    default: {
      const auto* const numbers = static_cast<const float*>(linear.bytes);
      ForEachInput<Number::kFp32>(linear.in, n,
                                  [=](int64_t k, int64_t place) { w[k] = numbers[place]; });
    }
  }
}

}  // namespace aft::kernels
