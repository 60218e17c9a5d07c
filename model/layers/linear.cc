#include "model/layers/linear.h"

#include <algorithm>

#include "base/check.h"

namespace aft {
namespace {

// The time in nanoseconds that makes a part of a product worth a thread.
constexpr int64_t kPartTime = 500;
// The least time of a panel in nanoseconds, on a current core. With few rows it reads its weights,
// with many it computes.
int64_t PanelTime(const kernels::PackedWeight& weight, int64_t rows) {
  constexpr int64_t kBytes = 64;  // per nanosecond
  return std::max(kernels::PanelBytes(weight.in, weight.format) / kBytes,
                  weight.in * kernels::kPanel * rows / SpecOf(weight.format).products);
}
// The count of numbers whose quantization takes about as long as waking a thread.
constexpr int64_t kQuantizedPerThread = 16'384;

}  // namespace

LinearLayer::LinearLayer(const WeightMap& tensors, const std::string& weight,
                         const std::string& bias, int64_t in, int64_t out, WeightArena& arena)
    : packed_(kernels::PackLinear(
          TensorData(tensors, weight), bias.empty() ? nullptr : TensorData(tensors, bias), in, out,
          arena.format(), arena.TakeBytes(kernels::PackedWeightBytes(in, out, arena.format())))) {}

void LinearLayer::Forward(const float* x, int64_t rows, float* y, kernels::Epilogue epilogue,
                          const Workspace& workspace) const {
  ForwardPanels(x, rows, 0, kernels::LinearPanels(packed_.out), y, packed_.out, epilogue,
                workspace);
}

void LinearLayer::ForwardStrided(const float* x, int64_t rows, float* y, int64_t stride,
                                 const Workspace& workspace) const {
  ForwardPanels(x, rows, 0, kernels::LinearPanels(packed_.out), y, stride, Activation::kNone,
                workspace);
}

void LinearLayer::ForwardColumns(const float* x, int64_t rows, int64_t first, int64_t count,
                                 float* y, const Workspace& workspace) const {
  ForwardPanels(x, rows, first / kernels::kPanel, kernels::LinearPanels(first + count), y,
                packed_.out, Activation::kNone, workspace);
}

void LinearLayer::ForwardPanels(const float* x, int64_t rows, int64_t first, int64_t past, float* y,
                                int64_t stride, kernels::Epilogue epilogue,
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
  // A part has at least two panels, because with few rows the kernel reads several at once.
  const int64_t grain =
      std::max<int64_t>(kPartTime / std::max<int64_t>(PanelTime(packed_, rows), 1), 2);
  executor.For(past - first, grain, [&](int64_t begin, int64_t end, int) {
    kernels::Linear(packed_, input, y, stride, epilogue, first + begin, first + end);
  });
}

}  // namespace aft
