// Products of integers. This file is compiled once per instruction set (simd.h), and once more
// (AFT_INT8_DOTS) for AVX3 with AVX512-VNNI or for NEON with dot products, for which Highway has no
// instruction sets of their own.
#include "model/kernels/linear/linear_int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/kernels/linear/linear-inl.h"
#include "model/kernels/simd.h"

#ifndef AFT_INT8_DOTS
#define AFT_INT8_DOTS 0
#endif
#if AFT_INT8_DOTS && HWY_ARCH_X86
#include "model/kernels/instruction_set.h"
#include "model/kernels/linear/tiles-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace {

// A row holds two bytes for each input, padded to whole vectors.
int64_t RowBytes(int64_t in) { return (kQuantizedHead + (in + 15) / 16 * 32 + 63) / 64 * 64; }

}  // namespace

using SumTag = hn::RebindToSigned<LinearTag>;
using Sum = hn::Vec<SumTag>;

// QuadDots and PairDots add four products to each 32-bit lane. They define how a row's four
// integers are stored, how lanes hold them, and how their products with `w` are summed.
#if AFT_INT8_DOTS
// AVX512-VNNI multiplies unsigned bytes by signed ones. So x has 128 added to it, and Correct
// subtracts what that added to the sum. NEON multiplies signed bytes.
struct QuadDots {
  using Number = int8_t;
  struct Four {
    Sum x;
  };
  // Stores integers into row `x`, from input k on.
  static HWY_INLINE void Put(Sum integers, Number* x, int64_t k) {
    const hn::Rebind<int8_t, SumTag> bytes;
    constexpr int8_t kAdded = HWY_ARCH_X86 ? -128 : 0;
    hn::StoreU(hn::Xor(hn::DemoteTo(bytes, integers), hn::Set(bytes, kAdded)), bytes, x + k);
  }
  static HWY_INLINE Four Get(const Number* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof(four));
    return {hn::Set(SumTag(), four)};
  }
  struct Weights {
    Sum w;
  };
  static HWY_INLINE Weights Of(Sum w) { return {w}; }
  static HWY_INLINE Sum Add(Sum sum, Four x, Weights w) {
#if HWY_ARCH_X86
    return Sum{_mm512_dpbusd_epi32(sum.raw, x.x.raw, w.w.raw)};
#else
    const hn::Repartition<int8_t, SumTag> bytes;
    return Sum{vdotq_s32(sum.raw, hn::BitCast(bytes, x.x).raw, hn::BitCast(bytes, w.w).raw)};
#endif
  }
  static HWY_INLINE Sum Correct(Sum sum, [[maybe_unused]] Sum of_weights) {
    return HWY_ARCH_X86 ? hn::Sub(sum, hn::ShiftLeft<7>(of_weights)) : sum;
  }
};
#else
// Products of 16-bit halves: bytes 0 and 2 of a lane, then 1 and 3. x has this order.
struct PairDots {
  using Number = int16_t;
  struct Four {
    Sum even;
    Sum odd;
  };
  static HWY_INLINE void Put(Sum integers, Number* x, int64_t k) {
#if HWY_TARGET == HWY_SCALAR
    constexpr int kPlaces[] = {0, 2, 1, 3};
    x[k / 4 * 4 + kPlaces[k % 4]] = static_cast<Number>(hn::GetLane(integers));
#else
    HWY_ALIGN static constexpr uint8_t kPlaces[] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                    8, 9, 12, 13, 10, 11, 14, 15};
    const hn::Rebind<Number, SumTag> halves;
    const hn::Repartition<uint8_t, decltype(halves)> bytes;
    const auto ordered = hn::TableLookupBytes(hn::BitCast(bytes, hn::DemoteTo(halves, integers)),
                                              hn::LoadDup128(bytes, kPlaces));
    hn::StoreU(hn::BitCast(halves, ordered), halves, x + k);
#endif
  }
  static HWY_INLINE Four Get(const Number* x) {
    // Two loads, which also broadcast. One load of both would be split in general registers.
    int32_t even;
    int32_t odd;
    std::memcpy(&even, x, sizeof(even));
    std::memcpy(&odd, x + 2, sizeof(odd));
    return {hn::Set(SumTag(), even), hn::Set(SumTag(), odd)};
  }
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  struct Weights {
    Sum even;
    Sum odd;
  };
  static HWY_INLINE Weights Of(Sum w) {
    const hn::Repartition<int16_t, SumTag> halves;
    const SumTag d;
    const auto bytes = hn::BitCast(halves, w);
    return {hn::BitCast(d, hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes))),
            hn::BitCast(d, hn::ShiftRight<8>(bytes))};
  }
  static HWY_INLINE Sum Pairs(Sum sum, Sum a, Sum b) {
    const hn::Repartition<int16_t, SumTag> halves;
    const SumTag d;
    Sum unused = hn::Zero(d);
    return hn::ReorderWidenMulAccumulate(d, hn::BitCast(halves, a), hn::BitCast(halves, b), sum,
                                         unused);
  }
  static HWY_INLINE Sum Add(Sum sum, Four x, Weights w) {
    return Pairs(Pairs(sum, x.even, w.even), x.odd, w.odd);
  }
#else
  struct Weights {
    Sum w;
  };
  static HWY_INLINE Weights Of(Sum w) { return {w}; }
  static HWY_INLINE Sum Low(Sum pair) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(pair)); }
  static HWY_INLINE Sum High(Sum pair) { return hn::ShiftRight<16>(pair); }
  static HWY_INLINE Sum Add(Sum sum, Four x, Weights w) {
    sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<24>(w.w)), Low(x.even)));
    sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<16>(w.w)), Low(x.odd)));
    sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<8>(w.w)), High(x.even)));
    return hn::Add(sum, hn::Mul(hn::ShiftRight<24>(w.w), High(x.odd)));
  }
#endif
  static HWY_INLINE Sum Correct(Sum sum, Sum /*of_weights*/) { return sum; }
};
#endif

// Stores the vector of outputs from `column` on that the sums of integers at `products` give, for
// `rows` rows from `row` on. The sums of two rows are `distance` apart.
template <class D>
HWY_INLINE void StoreProducts(const LinearCall& call, const int32_t* products, int64_t distance,
                              int64_t row, int64_t rows, int64_t column) {
  const LinearTag df;
  const SumTag d;
  const Int8Vectors vectors(call.linear);
  const Sum of_weights = hn::Load(d, vectors.sums + column);
  const LinearVec scales = hn::Load(df, vectors.scales + column);
  const LinearVec bias = hn::Load(df, vectors.bias + column);
  const int64_t row_bytes = RowBytes(call.linear.in);
  const auto* const quantized =
      static_cast<const unsigned char*>(call.rows.quantized) + row * row_bytes;
  const ColumnStore store(call, column);
  for (int64_t r = 0; r < rows; ++r) {
    float scale;
    std::memcpy(&scale, quantized + r * row_bytes, sizeof(scale));
    const Sum exact = D::Correct(hn::Load(d, products + r * distance), of_weights);
    const LinearVec product =
        hn::Mul(hn::ConvertTo(df, exact), hn::Mul(hn::Set(df, scale), scales));
    store.Put(hn::Add(product, bias), row + r);
  }
}

template <class D>
struct Int8Blocks {
  static constexpr int kStreamAheadRows = 5;
  static constexpr int kWholeRows = kLinearSums / kVectorsInPanel;
  using WholeAhead = StreamAhead;

  template <class Shape, class Ahead>
  static HWY_INLINE void Run(const LinearCall& call, Ahead& ahead_of_all, int64_t row,
                             int64_t panel, int64_t column) {
    Ahead ahead = ahead_of_all;
    constexpr int kRows = Shape::kRows;
    constexpr int kPanels = Shape::kPanels;
    constexpr int kVectors = Shape::kVectors;
    using Number = typename D::Number;
    const SumTag d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t in = call.linear.in;
    const int64_t panel_bytes = PanelBytes(in, call.linear.format);
    const int64_t row_bytes = RowBytes(in);
    const auto* weights =
        static_cast<const int8_t*>(call.linear.bytes) + panel * panel_bytes + column * 4;
    const auto* const rows =
        static_cast<const unsigned char*>(call.rows.quantized) + row * row_bytes;
    Sum sum[kRows][kPanels][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVectors; ++v) sum[r][p][v] = hn::Zero(d);
      }
    }
    const Number* x[kRows];
    for (int r = 0; r < kRows; ++r) {
      x[r] = reinterpret_cast<const Number*>(rows + r * row_bytes + kQuantizedHead);
    }
    for (int64_t k = 0; k < in; k += 4) {
      typename D::Weights w[kPanels][kVectors];
      for (int p = 0; p < kPanels; ++p) {
        const auto* const at = reinterpret_cast<const int32_t*>(weights + p * panel_bytes);
        ahead.Request(at, p * panel_bytes);
        for (int v = 0; v < kVectors; ++v) {
          Sum loaded = hn::Load(d, at + v * lanes);
          KeepForRows<kRows>(loaded.raw);
          w[p][v] = D::Of(loaded);
        }
      }
      ahead.EndTurn();
      for (int r = 0; r < kRows; ++r) {
        const auto four = D::Get(x[r] + k);
        for (int p = 0; p < kPanels; ++p) {
          for (int v = 0; v < kVectors; ++v) sum[r][p][v] = D::Add(sum[r][p][v], four, w[p][v]);
        }
      }
      weights += kPanelRow;
    }
    ahead_of_all = ahead;

    // The sums go through memory; linear_floats.cc says why.
    constexpr int kVectorsOfRow = kPanels * kVectors;
    HWY_ALIGN int32_t products[kRows * kVectorsOfRow * 16];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectorsOfRow; ++i) {
        hn::Store(sum[r][i / kVectors][i % kVectors], d, products + (r * kVectorsOfRow + i) * 16);
      }
    }
    for (int i = 0; i < kVectorsOfRow; ++i) {
      StoreProducts<D>(call, products + i * 16, kVectorsOfRow * 16, row, kRows,
                       (panel + i / kVectors) * kPanel + column + i % kVectors * lanes);
    }
  }
};

#if AFT_INT8_DOTS && HWY_ARCH_X86
// The sums of integers are exact, so that they are the same as those of AVX512-VNNI.
struct Int8Tiles {
  using Sum = int32_t;
  template <int kSum>
  static HWY_INLINE void Add() {
    if constexpr (kSum == 0) _tile_dpbusd(0, 4, 6);
    if constexpr (kSum == 1) _tile_dpbusd(1, 4, 7);
    if constexpr (kSum == 2) _tile_dpbusd(2, 5, 6);
    if constexpr (kSum == 3) _tile_dpbusd(3, 5, 7);
  }
  static HWY_INLINE void Store(const LinearCall& call, const Sum* sums, int64_t row, int64_t rows,
                               int64_t column) {
    StoreProducts<QuadDots>(call, sums, kPanel, row, rows, column);
  }
};
#endif

template <class D>
void QuantizeRow(const float* x, int64_t in, unsigned char* to) {
  const LinearTag d;
  const SumTag di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // Magnitudes compare as their bits do, and numbers that are not finite have the largest bits.
  Sum most = hn::Zero(di);
  for (int64_t k = 0; k < in; k += lanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(LoadInputs(d, x + k, in - k))));
  }
  const float largest = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, most)));
  const float scale = largest / kInt8Most + largest * 0.0F;  // NaN if an input is not finite
  std::memcpy(to, &scale, sizeof(scale));
  // If the inverse would be infinite, or the scale is not finite, all integers are 0.
  const float inverse = largest > 1e-36F && std::isfinite(scale) ? kInt8Most / largest : 0.0F;

  auto* const integers = reinterpret_cast<typename D::Number*>(to + kQuantizedHead);
  const LinearVec factor = hn::Set(d, inverse);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  // NearestInt would also handle numbers that do not fit into an integer.
  const LinearVec magic = hn::Set(d, 12582912.0F);
  for (int64_t k = 0; k < in; k += lanes) {
    const LinearVec shifted = hn::Add(hn::Mul(LoadInputs(d, x + k, in - k), factor), magic);
    D::Put(hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic)), integers, k);
  }
}

template <class D>
HWY_INLINE void QuantizeAll(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                            void* quantized) {
  auto* const to = static_cast<unsigned char*>(quantized);
  for (int64_t r = begin; r < end; ++r) {
    QuantizeRow<D>(rows.x + r * rows.stride, in, to + r * RowBytes(in));
  }
}

#if !AFT_INT8_DOTS
void Int8Panels(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                Epilogue epilogue, int64_t begin, int64_t end) {
  AllRows<Int8Blocks<PairDots>>({linear, rows, y, y_stride, epilogue}, begin, end);
}
void Int8Quantize(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized) {
  QuantizeAll<PairDots>(rows, in, begin, end, quantized);
}
#endif

}  // namespace HWY_NAMESPACE

#if AFT_INT8_DOTS
void LinearInt8Dots(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                    Epilogue epilogue, int64_t begin, int64_t end) {
  using HWY_NAMESPACE::Int8Blocks;
  using HWY_NAMESPACE::QuadDots;
  const HWY_NAMESPACE::LinearCall call = {linear, rows, y, y_stride, epilogue};
#if HWY_ARCH_X86
  // With few rows reading the weights takes longer than the sums.
  constexpr int64_t kLeastRows = 6;
  if (rows.rows >= kLeastRows && linear.in % HWY_NAMESPACE::kTileBytes == 0 && HasTiles()) {
    return HWY_NAMESPACE::AllTiles<HWY_NAMESPACE::Int8Tiles>(
        call, {kQuantizedHead, HWY_NAMESPACE::RowBytes(linear.in), linear.in}, begin, end);
  }
#endif
  HWY_NAMESPACE::AllRows<Int8Blocks<QuadDots>>(call, begin, end);
}
void QuantizeInt8DotsRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                          void* quantized) {
  HWY_NAMESPACE::QuantizeAll<HWY_NAMESPACE::QuadDots>(rows, in, begin, end, quantized);
}
#endif

}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(Int8Panels);
AFT_EXPORT(Int8Quantize);

void LinearInt8(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                Epilogue epilogue, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Int8Panels)(linear, rows, y, y_stride, epilogue, begin, end);
}

int64_t Int8RowBytes(int64_t in) { return HWY_NAMESPACE::RowBytes(in); }

void QuantizeInt8Rows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                      void* quantized) {
  HWY_DYNAMIC_DISPATCH(Int8Quantize)(rows, in, begin, end, quantized);
}

}  // namespace aft::kernels
#endif
