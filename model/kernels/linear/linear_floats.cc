#include "model/kernels/linear/linear_floats.h"

#include <algorithm>

#include "model/kernels/linear/linear-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The number of an output's inputs that are stored next to each other, and how vector `i` of these
// inputs is read.
struct Fp32Weights {
  using Number = float;
  static constexpr int kInputs = 1;
  static constexpr int kMostWhole = 3;
  using WholeAhead = NothingAhead;
  static HWY_INLINE LinearVec Get(LinearTag d, const float* at, int /*i*/) {
    return hn::Load(d, at);
  }
};
struct Bf16Weights {
  using Number = uint16_t;
  static constexpr int kInputs = 2;
  static constexpr int kMostWhole = 2;  // its loop needs more registers
  using WholeAhead = OwnAhead;
  static HWY_INLINE LinearVec Get(LinearTag d, const uint16_t* at, int i) {
    const hn::RebindToUnsigned<LinearTag> du;
    const auto pairs = hn::Load(du, reinterpret_cast<const uint32_t*>(at));
    return hn::BitCast(
        d, i == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(du, 0xFFFF0000U)));
  }
};

// All sums stay in registers.
template <class Weights>
struct FloatBlocks {
  static constexpr int kStreamAheadRows = 6;
  static constexpr int kWholeRows = std::min(kLinearSums / kVectorsInPanel, Weights::kMostWhole);
  using WholeAhead = typename Weights::WholeAhead;

  template <class Shape, class Ahead>
  static HWY_INLINE void Run(const LinearCall& call, Ahead& ahead_of_all, int64_t row,
                             int64_t panel, int64_t column) {
    Ahead ahead = ahead_of_all;
    constexpr int kRows = Shape::kRows;
    constexpr int kPanels = Shape::kPanels;
    constexpr int kVectors = Shape::kVectors;
    using Number = typename Weights::Number;
    constexpr int kInputs = Weights::kInputs;
    const LinearTag d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t in = call.linear.in;
    const int64_t panel_bytes = PanelBytes(in, call.linear.format);
    const int64_t panel_numbers = panel_bytes / static_cast<int64_t>(sizeof(Number));
    const Number* weights =
        static_cast<const Number*>(call.linear.bytes) + panel * panel_numbers + column * kInputs;
    const float* bias = PackedBias(call.linear) + panel * kPanel + column;
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = call.rows.x + (row + r) * call.rows.stride;

    LinearVec sum[kRows][kPanels][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVectors; ++v) {
          sum[r][p][v] = hn::Load(d, bias + p * kPanel + v * lanes);
        }
      }
    }
    const auto add = [&](int64_t k, int i) HWY_ATTR {
      LinearVec w[kPanels][kVectors];
      // Vectors are handled in pairs, because in loops over single ones GCC 12 keeps sums of bf16
      // in memory with AVX2.
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVectors; v += 2) {
          const Number* const at = weights + p * panel_numbers + v * lanes * kInputs;
          LinearVec first = Weights::Get(d, at, i);
          LinearVec second = Weights::Get(d, at + lanes * kInputs, i);
          KeepForRows<kRows>(first.raw);
          KeepForRows<kRows>(second.raw);
          w[p][v] = first;
          w[p][v + 1] = second;
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const LinearVec broadcast = hn::Set(d, x[r][k]);
        for (int p = 0; p < kPanels; ++p) {
          for (int v = 0; v < kVectors; v += 2) {
            sum[r][p][v] = hn::MulAdd(broadcast, w[p][v], sum[r][p][v]);
            sum[r][p][v + 1] = hn::MulAdd(broadcast, w[p][v + 1], sum[r][p][v + 1]);
          }
        }
      }
    };
    int64_t k = 0;
    for (; k + kInputs <= in; k += kInputs) {
      for (int p = 0; p < kPanels; ++p) {
        ahead.Request(weights + p * panel_numbers, p * panel_bytes);
      }
      ahead.EndTurn();
      for (int i = 0; i < kInputs; ++i) {
        // Without this, GCC 12 reads the second inputs too early, and has no registers for them.
        asm volatile("" : "+r"(weights));
        add(k + i, i);
      }
      weights += kInputs * kPanel;
    }
    for (int i = 0; k + i < in; ++i) add(k + i, i);
    ahead_of_all = ahead;

    // The sums go through memory. Otherwise, because the code below needs registers too, the
    // compiler would write the sums in every turn of the loop above. (In one function with
    // Int8Blocks, GCC 12 would do that with SSE4.)
    constexpr int kVectorsOfRow = kPanels * kVectors;
    HWY_ALIGN float products[kRows * kVectorsOfRow * 16];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectorsOfRow; ++i) {
        hn::Store(sum[r][i / kVectors][i % kVectors], d, products + (r * kVectorsOfRow + i) * 16);
      }
    }
    for (int i = 0; i < kVectorsOfRow; ++i) {
      const int64_t first = (panel + i / kVectors) * kPanel + column + i % kVectors * lanes;
      const ColumnStore store(call, first);
      for (int r = 0; r < kRows; ++r) {
        store.Put(hn::Load(d, products + (r * kVectorsOfRow + i) * 16), row + r);
      }
    }
  }
};

void FloatPanels(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                 Epilogue epilogue, int64_t begin, int64_t end) {
  const LinearCall call = {linear, rows, y, y_stride, epilogue};
  if (linear.format == Number::kBf16) {
    AllRows<FloatBlocks<Bf16Weights>>(call, begin, end);
  } else {
    AllRows<FloatBlocks<Fp32Weights>>(call, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(FloatPanels);

void LinearFloats(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                  Epilogue epilogue, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(FloatPanels)(linear, rows, y, y_stride, epilogue, begin, end);
}

}  // namespace aft::kernels
#endif
