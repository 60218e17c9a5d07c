#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "model/kernels/cuda/types.h"
#include "tests/cuda/device_array.h"

namespace aft {

// The bytes of the numbers as a kernel stores them, rounded to nearest even.
inline std::vector<unsigned char> EncodeNumbers(const std::vector<float>& values, Number type) {
  const size_t each = static_cast<size_t>(NumberBytes(type));
  std::vector<unsigned char> bytes(values.size() * each);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    if (type == Number::kBf16) {
      bits = std::isnan(values[i]) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    } else if (type == Number::kFp16) {
      bits = std::bit_cast<uint16_t>(static_cast<_Float16>(values[i]));
    }
    std::memcpy(bytes.data() + i * each, &bits, each);  // little-endian
  }
  return bytes;
}

inline std::vector<float> DecodeNumbers(const std::vector<unsigned char>& bytes, Number type) {
  const size_t each = static_cast<size_t>(NumberBytes(type));
  std::vector<float> values(bytes.size() / each);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * each, each);
    if (type == Number::kBf16) bits <<= 16;
    values[i] = type == Number::kFp16
                    ? static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)))
                    : std::bit_cast<float>(bits);
  }
  return values;
}

// A matrix on the device. Its memory ends after the last number of the last row. With a stride
// above the width, the gaps between rows hold NaN, and Get checks that no kernel wrote there.
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t rows, int64_t width, Number type, int64_t stride = 0)
      : rows_(rows),
        width_(width),
        stride_(stride > 0 ? stride : width),
        type_(type),
        bytes_(static_cast<size_t>((rows > 0 ? (rows - 1) * stride_ + width : 0) *
                                   NumberBytes(type))) {}
  // A matrix that holds `values` [rows, width].
  DeviceMatrix(const std::vector<float>& values, int64_t width, Number type, int64_t stride = 0)
      : DeviceMatrix(static_cast<int64_t>(values.size()) / width, width, type, stride) {
    std::vector<unsigned char> all(bytes_.size(), 0xFF);
    for (int64_t row = 0; row < rows_; ++row) {
      const auto from = values.begin() + row * width;
      const std::vector<unsigned char> bytes = EncodeNumbers({from, from + width}, type);
      std::memcpy(all.data() + RowAt(row), bytes.data(), bytes.size());
    }
    bytes_.Set(all);
  }

  kernels::cuda::In in() const { return {bytes_.get(), type_, stride_}; }
  kernels::cuda::Out out() const { return {bytes_.get(), type_, stride_}; }

  // Returns [rows, width]. A matrix made from values returns them rounded to its type.
  std::vector<float> Get() const {
    const std::vector<unsigned char> all = bytes_.Get();
    const size_t row_bytes = static_cast<size_t>(width_ * NumberBytes(type_));
    std::vector<unsigned char> dense;
    for (int64_t row = 0; row < rows_; ++row) {
      const auto begin = all.begin() + static_cast<int64_t>(RowAt(row));
      dense.insert(dense.end(), begin, begin + static_cast<int64_t>(row_bytes));
      if (row + 1 == rows_) break;
      for (size_t i = RowAt(row) + row_bytes; i < RowAt(row + 1); ++i) AFT_CHECK(all[i] == 0xFF);
    }
    return DecodeNumbers(dense, type_);
  }

 private:
  size_t RowAt(int64_t row) const {
    return static_cast<size_t>(row * stride_ * NumberBytes(type_));
  }

  int64_t rows_;
  int64_t width_;
  int64_t stride_;
  Number type_;
  DeviceArray<unsigned char> bytes_;
};

}  // namespace aft
