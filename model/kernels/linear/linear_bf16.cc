// Compiled once, for AVX3 with AVX512-BF16, for which Highway has no instruction set of its own.
#include "model/kernels/linear/linear_bf16.h"

#include <cstring>

#include "model/kernels/instruction_set.h"
#include "model/kernels/linear/bf16-inl.h"
#include "model/kernels/linear/linear-inl.h"
#include "model/kernels/linear/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {
namespace {

// A row holds pairs of bf16; if the number of inputs is odd, the last one is paired with zero.
int64_t RowBytes(int64_t in) { return (in * 2 + 63) / 64 * 64; }

struct Bf16DotBlocks {
  static constexpr int kStreamAheadRows = 6;

  template <class Shape, class Ahead>
  static HWY_INLINE void Run(const LinearCall& call, Ahead& ahead_of_all, int64_t row,
                             int64_t panel, int64_t column) {
    Ahead ahead = ahead_of_all;
    constexpr int kRows = Shape::kRows;
    constexpr int kPanels = Shape::kPanels;
    static_assert(Shape::kVectors == 2);
    constexpr int64_t kLanes = 16;
    const LinearTag d;
    const int64_t in = call.linear.in;
    const int64_t panel_numbers = PanelBytes(in, Number::kBf16) / 2;
    const uint16_t* weights =
        static_cast<const uint16_t*>(call.linear.bytes) + panel * panel_numbers + column * 2;
    const float* const bias = PackedBias(call.linear) + panel * kPanel + column;
    const auto* const x = static_cast<const unsigned char*>(call.rows.quantized);
    const unsigned char* of_row[kRows];
    __m512 sum[kRows][kPanels][2];
    for (int r = 0; r < kRows; ++r) {
      of_row[r] = x + (row + r) * RowBytes(in);
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p][0] = _mm512_load_ps(bias + p * kPanel);
        sum[r][p][1] = _mm512_load_ps(bias + p * kPanel + kLanes);
      }
    }
    for (int64_t k = 0; k < in; k += 2) {
      __m512bh w[kPanels][2];
      for (int p = 0; p < kPanels; ++p) {
        const uint16_t* const at = weights + p * panel_numbers;
        ahead.Request(at, p * 2 * panel_numbers);
        w[p][0] = reinterpret_cast<__m512bh>(_mm512_load_si512(at));
        w[p][1] = reinterpret_cast<__m512bh>(_mm512_load_si512(at + 2 * kLanes));
        KeepForRows<kRows>(w[p][0]);
        KeepForRows<kRows>(w[p][1]);
      }
      ahead.EndTurn();
      for (int r = 0; r < kRows; ++r) {
        int32_t pair;
        std::memcpy(&pair, of_row[r] + 2 * k, sizeof(pair));
        const auto pairs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int p = 0; p < kPanels; ++p) {
          sum[r][p][0] = _mm512_dpbf16_ps(sum[r][p][0], pairs, w[p][0]);
          sum[r][p][1] = _mm512_dpbf16_ps(sum[r][p][1], pairs, w[p][1]);
        }
      }
      weights += 2 * kPanel;
    }
    ahead_of_all = ahead;

    // The sums go through memory; linear_floats.cc says why.
    alignas(64) float products[kRows * kPanels * 2 * kLanes];
    for (int i = 0; i < kRows * kPanels * 2; ++i) {
      _mm512_store_ps(products + i * kLanes, sum[i / (2 * kPanels)][i / 2 % kPanels][i % 2]);
    }
    for (int i = 0; i < 2 * kPanels; ++i) {
      const ColumnStore store(call, (panel + i / 2) * kPanel + column + i % 2 * kLanes);
      for (int r = 0; r < kRows; ++r) {
        store.Put(hn::Load(d, products + (r * 2 * kPanels + i) * kLanes), row + r);
      }
    }
  }
};

struct Bf16Tiles {
  using Sum = float;
  template <int kSum>
  static HWY_INLINE void Add() {
    if constexpr (kSum == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kSum == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kSum == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kSum == 3) _tile_dpbf16ps(3, 5, 7);
  }
  static HWY_INLINE void Store(const LinearCall& call, const Sum* sums, int64_t row, int64_t rows,
                               int64_t column) {
    const LinearTag d;
    const LinearVec bias = hn::Load(d, PackedBias(call.linear) + column);
    const ColumnStore store(call, column);
    for (int64_t r = 0; r < rows; ++r) {
      store.Put(hn::Add(hn::Load(d, sums + r * kPanel), bias), row + r);
    }
  }
};

void RoundRow(const float* x, int64_t in, uint16_t* to) {
  const LinearTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < in; k += lanes) {
    StoreBf16(d, RoundToBf16(d, LoadInputs(d, x + k, in - k)), to + k);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE

void LinearBf16Dots(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                    Epilogue epilogue, int64_t begin, int64_t end) {
  const HWY_NAMESPACE::LinearCall call = {linear, rows, y, y_stride, epilogue};
  const int64_t input_bytes = linear.in * 2;
  // The number of rows must not decide this, because the sums have other bits.
  if (input_bytes % HWY_NAMESPACE::kTileBytes == 0 && HasTiles()) {
    return HWY_NAMESPACE::AllTiles<HWY_NAMESPACE::Bf16Tiles>(
        call, {0, Bf16RowBytes(linear.in), input_bytes}, begin, end);
  }
  HWY_NAMESPACE::AllRows<HWY_NAMESPACE::Bf16DotBlocks>(call, begin, end);
}

int64_t Bf16RowBytes(int64_t in) { return HWY_NAMESPACE::RowBytes(in); }

void QuantizeBf16DotsRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                          void* quantized) {
  auto* const to = static_cast<unsigned char*>(quantized);
  for (int64_t r = begin; r < end; ++r) {
    HWY_NAMESPACE::RoundRow(rows.x + r * rows.stride, in,
                            reinterpret_cast<uint16_t*>(to + r * Bf16RowBytes(in)));
  }
}

}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
