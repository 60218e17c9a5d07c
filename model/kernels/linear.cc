#include "model/kernels/linear.h"

#include <algorithm>
#include <cstring>

#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// At most half a panel, so that panels always split into pairs of vectors.
using Tag = hn::CappedTag<float, 16>;
using V = hn::Vec<Tag>;

struct Call {
  const PackedWeight& linear;
  const float* panels;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  Epilogue epilogue;
};

// gelu(x) = x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)), the tanh form rewritten.
HWY_INLINE V GeluTanh(Tag d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548163F), hn::Set(d, 1.59576912F));
  return hn::Div(x, OnePlusExpNeg(d, hn::Mul(x, cubic)));
}

// gelu(x) = x * Phi(x), Phi the normal distribution. From its tail, so that no digit cancels:
// Phi(-a) = exp(-a^2 / 2) * t * p(t), t = 1 / (1 + 0.3 a), a >= 0; p is a minimax polynomial of
// degree 7 for a <= 14, relative error 1.5e-7 (4e-7 as computed).
HWY_INLINE V Gelu(Tag d, V x) {
  const V a = hn::Abs(x);
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.3F), one));
  V p = hn::Set(d, 0.0356747769F);
  for (const float c : {-0.157203108F, 0.20635353F, -0.0536836721F, 0.128561646F, 0.0999134853F,
                        0.120753959F, 0.119629301F}) {
    p = hn::MulAdd(p, t, hn::Set(d, c));
  }
  const V density = Exp(d, hn::Mul(hn::Mul(a, a), hn::Set(d, -0.5F)));
  const V tail = hn::Mul(x, hn::Mul(hn::Mul(p, t), density));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(x, tail), tail);
}

HWY_INLINE V Finish(Tag d, Epilogue epilogue, V sum, const float* y) {
  if (epilogue.add) return hn::Add(hn::LoadU(d, y), sum);
  switch (epilogue.activation) {
    case Activation::kRelu:
      return AtLeast(d, 0.0F, sum);
    case Activation::kGelu:
      return Gelu(d, sum);
    case Activation::kGeluTanh:
      return GeluTanh(d, sum);
    case Activation::kNone:
      break;
  }
  return sum;
}

// Rows [row, row + kRows), panels [panel, panel + kPanels), and of each panel the two vectors at
// `column`. All kRows * kPanels * 2 sums stay in registers.
template <int kRows, int kPanels>
HWY_INLINE void Block(const Call& call, int64_t row, int64_t panel, int64_t column) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = call.linear.in;
  const int64_t panel_floats = in * kPanel;
  const float* weights = call.panels + panel * panel_floats + column;
  const float* bias =
      call.panels + LinearPanels(call.linear.out) * panel_floats + panel * kPanel + column;
  const float* x = call.x + row * call.x_stride;
  const int64_t x_stride = call.x_stride;

  V sum[kRows][kPanels][2];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      sum[r][p][0] = hn::Load(d, bias + p * kPanel);
      sum[r][p][1] = hn::Load(d, bias + p * kPanel + lanes);
    }
  }
  for (int64_t k = 0; k < in; ++k) {
    V w[kPanels][2];
    for (int p = 0; p < kPanels; ++p) {
      w[p][0] = hn::Load(d, weights + p * panel_floats);
      w[p][1] = hn::Load(d, weights + p * panel_floats + lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V broadcast = hn::Set(d, x[r * x_stride + k]);
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p][0] = hn::MulAdd(broadcast, w[p][0], sum[r][p][0]);
        sum[r][p][1] = hn::MulAdd(broadcast, w[p][1], sum[r][p][1]);
      }
    }
    weights += kPanel;
  }

  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      const int64_t first = (panel + p) * kPanel + column;
      float* y = call.y + (row + r) * call.y_stride + first;
      for (int half = 0; half < 2; ++half, y += lanes) {
        const int64_t left = call.linear.out - first - half * lanes;
        if (left >= lanes) {
          hn::StoreU(Finish(d, call.epilogue, sum[r][p][half], y), d, y);
        } else if (left > 0) {
          HWY_ALIGN float part[16] = {};
          std::memcpy(part, y, static_cast<size_t>(left) * sizeof(float));
          hn::Store(Finish(d, call.epilogue, sum[r][p][half], part), d, part);
          std::memcpy(y, part, static_cast<size_t>(left) * sizeof(float));
        }
      }
    }
  }
}

template <int kRows, int kPanels>
void Panels(const Call& call, int64_t row, int64_t panel) {
  const int64_t pair = 2 * static_cast<int64_t>(hn::Lanes(Tag()));
  for (int64_t column = 0; column < kPanel; column += pair) {
    Block<kRows, kPanels>(call, row, panel, column);
  }
}

// Registers hold about 24 sums with 32 registers and 12 with 16.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kMaxRows = 12;
constexpr int kSums = 24;
#else
constexpr int kMaxRows = 6;
constexpr int kSums = 12;
#endif

// kRows rows through all panels. With few rows several panels run at once: it takes eight chains to
// hide the latency of the additions, and several streams to read weights at the memory's speed.
template <int kRows>
void AllPanels(const Call& call, int64_t row, int64_t begin, int64_t end) {
  constexpr int kAtOnce = std::clamp(kSums / (2 * kRows), 1, 4);
  int64_t panel = begin;
  for (; panel + kAtOnce <= end; panel += kAtOnce) Panels<kRows, kAtOnce>(call, row, panel);
  for (; panel < end; ++panel) Panels<kRows, 1>(call, row, panel);
}

// Calls AllPanels<rows>, for 1 <= rows <= kMaxRows.
template <int kRows = kMaxRows>
HWY_INLINE void DispatchRows(const Call& call, int64_t row, int64_t rows, int64_t begin,
                             int64_t end) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return DispatchRows<kRows - 1>(call, row, rows, begin, end);
  }
  AllPanels<kRows>(call, row, begin, end);
}

void LinearImpl(const PackedWeight& linear, const float* x, int64_t x_stride, int64_t rows,
                float* y, int64_t y_stride, Epilogue epilogue, int64_t begin, int64_t end) {
  if (rows <= 0) return;
  const Call call = {linear,  static_cast<const float*>(linear.bytes), x, x_stride, y, y_stride,
                     epilogue};
  if (rows <= kMaxRows) return DispatchRows(call, 0, rows, begin, end);
  // Blocks of nearly equal size. A panel stays in the cache while all rows pass.
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = rows * b / blocks;
      DispatchRows(call, first, rows * (b + 1) / blocks - first, panel, panel + 1);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(LinearImpl);

int64_t PackedWeightFloats(int64_t in, int64_t out, Number /*format*/) {
  return LinearPanels(out) * kPanel * (in + 1);
}

PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, float* packed) {
  const int64_t panels = LinearPanels(out);
  float* packed_bias = packed + panels * kPanel * in;
  for (int64_t n = 0; n < panels * kPanel; ++n) {
    float* column = packed + n / kPanel * kPanel * in + n % kPanel;
    for (int64_t k = 0; k < in; ++k) column[k * kPanel] = n < out ? weight[n * in + k] : 0.0F;
    packed_bias[n] = bias != nullptr && n < out ? bias[n] : 0.0F;
  }
  return {format, packed, in, out};
}

void Linear(const PackedWeight& linear, const float* x, int64_t x_stride, int64_t rows, float* y,
            int64_t y_stride, Epilogue epilogue, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LinearImpl)
  (linear, x, x_stride, rows, y, y_stride, epilogue, begin, end);
}

}  // namespace aft::kernels
#endif
