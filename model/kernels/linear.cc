#include "model/kernels/linear.h"

#include "model/kernels/linear_floats.h"
#include "model/kernels/linear_int8.h"

namespace aft::kernels {

int64_t QuantizedBytes(Number format, int64_t in) {
  return format == Number::kInt8   ? Int8RowBytes(in)
         : format == Number::kBf16 ? Bf16QuantizedBytes(in)
                                   : 0;
}

void QuantizeRows(Number format, const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                  void* quantized) {
  const auto of_format = format == Number::kInt8 ? &QuantizeInt8Rows : &QuantizeBf16Rows;
  of_format(rows, in, begin, end, quantized);
}

void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end) {
  const auto of_format = linear.format == Number::kInt8 ? &LinearInt8 : &LinearFloats;
  of_format(linear, rows, y, y_stride, epilogue, begin, end);
}

}  // namespace aft::kernels
