#include "model/kernels/linear_bf16.h"

#include <cstring>

#include "model/kernels/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {
namespace {

struct Bf16DotBlocks {
  template <int kRows, int kPanels>
  static HWY_INLINE void Run(const LinearCall& call, int64_t row, int64_t panel, int64_t column) {
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
      of_row[r] = x + (row + r) * Bf16RowBytes(in);
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p][0] = _mm512_load_ps(bias + p * kPanel);
        sum[r][p][1] = _mm512_load_ps(bias + p * kPanel + kLanes);
      }
    }
    for (int64_t k = 0; k < in; k += 2) {
      __m512bh w[kPanels][2];
      for (int p = 0; p < kPanels; ++p) {
        const uint16_t* const at = weights + p * panel_numbers;
        w[p][0] = reinterpret_cast<__m512bh>(_mm512_load_si512(at));
        w[p][1] = reinterpret_cast<__m512bh>(_mm512_load_si512(at + 2 * kLanes));
      }
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

    // Through memory: as in linear_floats.cc.
    alignas(64) float products[kRows * kPanels * 2 * kLanes];
    for (int i = 0; i < kRows * kPanels * 2; ++i) {
      _mm512_store_ps(products + i * kLanes, sum[i / (2 * kPanels)][i / 2 % kPanels][i % 2]);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 2 * kPanels; ++i) {
        const int64_t first = (panel + i / 2) * kPanel + column + i % 2 * kLanes;
        StoreSums(call, hn::Load(d, products + (r * 2 * kPanels + i) * kLanes), row + r, first);
      }
    }
  }
};

}  // namespace

void RoundRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized) {
  const LinearTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = begin; r < end; ++r) {
    const float* const x = rows.x + r * rows.stride;
    auto* const to =
        reinterpret_cast<uint16_t*>(static_cast<unsigned char*>(quantized) + r * Bf16RowBytes(in));
    for (int64_t k = 0; k < in; k += lanes) {
      HWY_ALIGN float some[16] = {};
      const float* from = x + k;
      if (in - k < lanes) {
        std::memcpy(some, from, static_cast<size_t>(in - k) * sizeof(float));
        from = some;
      }
      StoreBf16(d, RoundToBf16(d, hn::LoadU(d, from)), to + k);
    }
  }
}

void Bf16DotPanels(const LinearCall& call, int64_t begin, int64_t end) {
  AllRows<Bf16DotBlocks>(call, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
