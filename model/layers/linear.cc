#include "model/layers/linear.h"

#include <algorithm>

#include "base/check.h"

namespace aft {
namespace {

// Multiply-adds below which a second thread costs more than it brings: about 5 us. Integers take a
// quarter of the time.
constexpr int64_t kWorkPerThread = 500'000;
int64_t WorkPerThread(Number format) {
  return format == Number::kInt8 ? 4 * kWorkPerThread : kWorkPerThread;
}
// Numbers to quantize, likewise.
constexpr int64_t kQuantizedPerThread = 16'384;

}  // namespace

LinearLayer::LinearLayer(const WeightMap& tensors, const std::string& weight,
                         const std::string& bias, int64_t in, int64_t out, WeightArena& arena)
    : packed_(kernels::PackLinear(
          TensorData(tensors, weight), bias.empty() ? nullptr : TensorData(tensors, bias), in, out,
          arena.format(), arena.TakeBytes(kernels::PackedWeightBytes(in, out, arena.format())))) {}

void LinearLayer::Forward(const float* x, int64_t rows, float* y, kernels::Epilogue epilogue,
                          const Workspace& workspace) const {
  const Executor& executor = *workspace.executor;
  kernels::LinearRows input = {x, packed_.in, rows};
  if (kernels::QuantizedBytes(packed_.format, packed_.in) > 0) {
    AFT_CHECK(workspace.quantized != nullptr);
    executor.For(rows, std::max<int64_t>(kQuantizedPerThread / packed_.in, 1),
                 [&](int64_t begin, int64_t end, int) {
                   kernels::QuantizeRows(packed_.format, input, packed_.in, begin, end,
                                         workspace.quantized);
                 });
    input.quantized = workspace.quantized;
  }
  const int64_t panel_work = std::max<int64_t>(packed_.in * kernels::kPanel * rows, 1);
  // Four panels and more: with few rows the kernel reads several at once.
  const int64_t grain = std::max<int64_t>(WorkPerThread(packed_.format) / panel_work, 4);
  executor.For(kernels::LinearPanels(packed_.out), grain, [&](int64_t begin, int64_t end, int) {
    kernels::Linear(packed_, input, y, packed_.out, epilogue, begin, end);
  });
}

}  // namespace aft
