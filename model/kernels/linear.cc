#include "model/kernels/linear.h"

#include "model/kernels/linear_floats.h"
#include "model/kernels/linear_int8.h"

namespace aft::kernels {

int64_t QuantizedBytes(int64_t in) { return Int8RowBytes(in); }

void QuantizeRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized) {
  QuantizeInt8Rows(rows, in, begin, end, quantized);
}

void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end) {
  const auto of_format = linear.format == Number::kInt8 ? &LinearInt8 : &LinearFloats;
  of_format(linear, rows, y, y_stride, epilogue, begin, end);
}

}  // namespace aft::kernels
