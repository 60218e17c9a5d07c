#include "model/kernels/packed_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace aft::kernels {
namespace {

// The nearest bf16, ties to even; a NaN stays one.
uint16_t ToBf16(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// How many inputs of an output lie side by side.
int64_t Neighbours(Number format) {
  return format == Number::kInt8 ? 4 : format == Number::kBf16 ? 2 : 1;
}

// Where input k of output n is, in numbers from the start.
class Places {
 public:
  Places(int64_t in, Number format)
      : neighbours_(Neighbours(format)), panel_(RoundUp(in, neighbours_) * kPanel) {}

  int64_t operator()(int64_t n, int64_t k) const {
    return n / kPanel * panel_ + (k / neighbours_ * kPanel + n % kPanel) * neighbours_ +
           k % neighbours_;
  }
  int64_t panel() const { return panel_; }

 private:
  static int64_t RoundUp(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }

  int64_t neighbours_;
  int64_t panel_;  // numbers of a panel
};

}  // namespace

float QuantizeOutput(const float* w, int64_t in, int8_t* integers) {
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
  return panels * Places(in, format).panel() * NumberBytes(format) + vectors * panels * kPanel * 4;
}

PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, void* packed) {
  std::memset(packed, 0, static_cast<size_t>(PackedWeightBytes(in, out, format)));
  const Places place(in, format);
  const int64_t panels = LinearPanels(out);
  auto* const numbers = static_cast<unsigned char*>(packed);
  auto* const packed_bias =
      reinterpret_cast<float*>(numbers + panels * place.panel() * NumberBytes(format));
  float* const scales = packed_bias + panels * kPanel;
  auto* const sums = reinterpret_cast<int32_t*>(scales + panels * kPanel);
  std::vector<int8_t> integers(format == Number::kInt8 ? static_cast<size_t>(in) : 0);
  for (int64_t n = 0; n < out; ++n) {
    const float* const row = weight + n * in;
    if (bias != nullptr) packed_bias[n] = bias[n];
    if (format == Number::kInt8) scales[n] = QuantizeOutput(row, in, integers.data());
    for (int64_t k = 0; k < in; ++k) {
      if (format == Number::kInt8) {
        const int8_t integer = integers[static_cast<size_t>(k)];
        reinterpret_cast<int8_t*>(numbers)[place(n, k)] = integer;
        sums[n] += integer;
      } else if (format == Number::kBf16) {
        reinterpret_cast<uint16_t*>(numbers)[place(n, k)] = ToBf16(row[k]);
      } else {
        reinterpret_cast<float*>(numbers)[place(n, k)] = row[k];
      }
    }
  }
  return {format, packed, in, out};
}

void UnpackOutput(const PackedWeight& linear, int64_t n, float* w) {
  const Places place(linear.in, linear.format);
  if (linear.format == Number::kFp32) {
    const auto* const numbers = static_cast<const float*>(linear.bytes);
    for (int64_t k = 0; k < linear.in; ++k) w[k] = numbers[place(n, k)];
  } else if (linear.format == Number::kBf16) {
    const auto* const numbers = static_cast<const uint16_t*>(linear.bytes);
    for (int64_t k = 0; k < linear.in; ++k) {
      w[k] = std::bit_cast<float>(uint32_t{numbers[place(n, k)]} << 16);
    }
  } else {
    const auto* const numbers = static_cast<const int8_t*>(linear.bytes);
    const float scale = Int8Vectors(linear).scales[n];
    for (int64_t k = 0; k < linear.in; ++k) w[k] = scale * static_cast<float>(numbers[place(n, k)]);
  }
}

}  // namespace aft::kernels
