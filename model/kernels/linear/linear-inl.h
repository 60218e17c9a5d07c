// Common code of the linear kernels, compiled once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/kernels/exp-inl.h"
#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// A vector is at most half a panel, so that panels always split into pairs of vectors.
using LinearTag = hn::CappedTag<float, 16>;
using LinearVec = hn::Vec<LinearTag>;

struct LinearCall {
  const PackedWeight& linear;
  const LinearRows& rows;
  float* y;
  int64_t y_stride;
  Epilogue epilogue;
};

// gelu(x) = x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)), which is the tanh form rewritten.
HWY_INLINE LinearVec GeluTanh(LinearTag d, LinearVec x) {
  const LinearVec cubic =
      hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548163F), hn::Set(d, 1.59576912F));
  return hn::Div(x, OnePlusExpNeg(d, hn::Mul(x, cubic)));
}

// gelu(x) = x * Phi(x), Phi the normal distribution. It is computed from the tail of Phi, so that
// no digit cancels: Phi(-a) = exp(-a^2 / 2) * t * p(t), t = 1 / (1 + 0.3 a), a >= 0. p is a minimax
// polynomial of degree 7 for a <= 14 with a relative error of 1.5e-7 (4e-7 as computed).
HWY_INLINE LinearVec Gelu(LinearTag d, LinearVec x) {
  const LinearVec a = hn::Abs(x);
  const LinearVec one = hn::Set(d, 1.0F);
  const LinearVec t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.3F), one));
  LinearVec p = hn::Set(d, 0.0356747769F);
  for (const float c : {-0.157203108F, 0.20635353F, -0.0536836721F, 0.128561646F, 0.0999134853F,
                        0.120753959F, 0.119629301F}) {
    p = hn::MulAdd(p, t, hn::Set(d, c));
  }
  const LinearVec density = Exp(d, hn::Mul(hn::Mul(a, a), hn::Set(d, -0.5F)));
  const LinearVec tail = hn::Mul(x, hn::Mul(hn::Mul(p, t), density));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(x, tail), tail);
}

// Loads a vector of a row's inputs, of which `left` remain, with zeros after the last one.
HWY_INLINE LinearVec LoadInputs(LinearTag d, const float* x, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, x);
  HWY_ALIGN float part[16] = {};
  std::memcpy(part, x, static_cast<size_t>(left) * sizeof(float));
  return hn::Load(d, part);
}

HWY_INLINE LinearVec Finish(LinearTag d, Epilogue epilogue, LinearVec sum, const float* y) {
  if (epilogue.add) return hn::Add(hn::LoadU(d, y), sum);
  switch (epilogue.activation) {
    case Activation::kRelu:
      return AtLeast(d, 0.0F, sum);
    case Activation::kGelu:
      return Gelu(d, sum);
    case Activation::kGeluTanh:
      return GeluTanh(d, sum);
    case Activation::kSquaredRelu: {
      const LinearVec x = AtLeast(d, 0.0F, sum);
      return hn::Mul(x, x);
    }
    case Activation::kNone:
      break;
  }
  return sum;
}

// Stores the vector of sums of columns [column, column + lanes) of a row.
HWY_INLINE void StoreSums(const LinearCall& call, LinearVec sum, int64_t row, int64_t column) {
  const LinearTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* const y = call.y + row * call.y_stride + column;
  const int64_t left = call.linear.out - column;
  if (left >= lanes) {
    hn::StoreU(Finish(d, call.epilogue, sum, y), d, y);
  } else if (left > 0) {
    HWY_ALIGN float part[16] = {};
    std::memcpy(part, y, static_cast<size_t>(left) * sizeof(float));
    hn::Store(Finish(d, call.epilogue, sum, part), d, part);
    std::memcpy(y, part, static_cast<size_t>(left) * sizeof(float));
  }
}

// Requests the 128 bytes of weights that a turn of the loop will read 4 kB further on. The
// processor's own prefetching follows the reads too closely.
HWY_INLINE void RequestAhead(const void* weights) {
  __builtin_prefetch(static_cast<const char*>(weights) + 4096);
  __builtin_prefetch(static_cast<const char*>(weights) + 4096 + 64);
}

// Registers hold about 24 sums with 32 registers and 12 with 16.
#if AFT_MANY_REGISTERS
constexpr int kLinearRows = 12;  // at once
constexpr int kLinearSums = 24;
#else
constexpr int kLinearRows = 6;
constexpr int kLinearSums = 12;
#endif

// BlockFn::Run<kRows, kPanels>(call, row, panel, column) computes rows [row, row + kRows) of panels
// [panel, panel + kPanels), and in each panel the two vectors at `column`.
template <class BlockFn, int kRows, int kPanels>
void WholePanels(const LinearCall& call, int64_t row, int64_t panel) {
  const int64_t pair = 2 * static_cast<int64_t>(hn::Lanes(LinearTag()));
  for (int64_t column = 0; column < kPanel; column += pair) {
    BlockFn::template Run<kRows, kPanels>(call, row, panel, column);
  }
}

// Runs kRows rows through all panels. With few rows several panels run at once: it takes eight
// chains to hide the latency of the additions, and several streams to read weights at the memory's
// speed.
template <class BlockFn, int kRows>
void AllPanels(const LinearCall& call, int64_t row, int64_t begin, int64_t end) {
  constexpr int kWanted = kLinearSums / (2 * kRows);
  constexpr int kAtOnce = kWanted < 1 ? 1 : kWanted > 4 ? 4 : kWanted;
  int64_t panel = begin;
  for (; panel + kAtOnce <= end; panel += kAtOnce) {
    WholePanels<BlockFn, kRows, kAtOnce>(call, row, panel);
  }
  if constexpr (kAtOnce > 2) {
    for (; panel + 2 <= end; panel += 2) WholePanels<BlockFn, kRows, 2>(call, row, panel);
  }
  for (; panel < end; ++panel) WholePanels<BlockFn, kRows, 1>(call, row, panel);
}

// Calls AllPanels<rows>, for 1 <= rows <= kLinearRows.
template <class BlockFn, int kRows = kLinearRows>
HWY_INLINE void DispatchRows(const LinearCall& call, int64_t row, int64_t rows, int64_t begin,
                             int64_t end) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return DispatchRows<BlockFn, kRows - 1>(call, row, rows, begin, end);
  }
  AllPanels<BlockFn, kRows>(call, row, begin, end);
}

template <class BlockFn>
void AllRows(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t rows = call.rows.rows;
  if (rows <= 0) return;
  if (rows <= kLinearRows) return DispatchRows<BlockFn>(call, 0, rows, begin, end);
  // Blocks of rows have nearly equal sizes. A panel stays in the cache while all rows use it.
  const int64_t blocks = (rows + kLinearRows - 1) / kLinearRows;
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = rows * b / blocks;
      DispatchRows<BlockFn>(call, first, rows * (b + 1) / blocks - first, panel, panel + 1);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
