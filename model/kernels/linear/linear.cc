#include "model/kernels/linear/linear.h"

#include "model/kernels/instruction_set.h"
#include "model/kernels/linear/linear_floats.h"
#include "model/kernels/linear/linear_int8.h"
#if AFT_HAS_BF16_DOTS
#include "model/kernels/linear/linear_bf16.h"
#endif

namespace aft::kernels {
namespace {

// The functions that compute products with weights of one format on this CPU.
struct Products {
  decltype(&Linear) linear;
  int64_t (*row_bytes)(int64_t in);  // null: products read x itself
  void (*quantize)(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized);
};

Products Of(Number format) {
#if AFT_HAS_INT8_DOTS
  if (format == Number::kInt8 && HasInt8Dots()) {
    return {&LinearInt8Dots, &Int8RowBytes, &QuantizeInt8DotsRows};
  }
#endif
#if AFT_HAS_BF16_DOTS
  if (format == Number::kBf16 && HasBf16Dots()) {
    return {&LinearBf16Dots, &Bf16RowBytes, &QuantizeBf16DotsRows};
  }
#endif
  if (format == Number::kInt8) return {&LinearInt8, &Int8RowBytes, &QuantizeInt8Rows};
  return {&LinearFloats, nullptr, nullptr};
}

}  // namespace

int64_t QuantizedBytes(Number format, int64_t in) {
  const auto row_bytes = Of(format).row_bytes;
  return row_bytes == nullptr ? 0 : row_bytes(in);
}

void QuantizeRows(Number format, const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                  void* quantized) {
  Of(format).quantize(rows, in, begin, end, quantized);
}

void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end) {
  Of(linear.format).linear(linear, rows, y, y_stride, epilogue, begin, end);
}

}  // namespace aft::kernels
