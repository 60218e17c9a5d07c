// Products with AMX, for files that are compiled for it. AMX multiplies tiles: up to 16 rows with
// 16 columns, 64 bytes of each row's inputs at a time.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "model/kernels/linear/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kTileBytes = 64;                // of a row of any tile
constexpr int64_t kTurn = kPanelRow * kTileRows;  // bytes of a panel for kTileBytes of inputs

// The shapes of the tiles, as the processor reads them. Tiles 0 to 3 hold the sums of up to 32 rows
// and a panel's 32 columns, 4 and 5 the rows, 6 and 7 the weights.
struct alignas(64) TileShapes {
  explicit TileShapes(int64_t block) {
    const auto above = static_cast<uint8_t>(std::min(block, kTileRows));
    const auto below = static_cast<uint8_t>(block - above);
    rows[0] = rows[1] = rows[4] = above;
    rows[2] = rows[3] = rows[5] = below;
    rows[6] = rows[7] = kTileRows;
    for (int tile = 0; tile < 8; ++tile) bytes[tile] = rows[tile] == 0 ? 0 : kTileBytes;
  }

  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t bytes[16] = {};  // in a row of each tile
  uint8_t rows[16] = {};
};

// Weights that are requested while a panel is multiplied: `step` bytes in every turn.
struct TilesAhead {
  const unsigned char* at;
  int64_t step;
  bool is_shared;  // requests weights of the next panel
};

// Writes sums [rows, kPanel] of a block of rows, the first of which is at x, with a panel.
// Product::Add<0 to 3>() adds the products of tiles 4 4 5 5 and 6 7 6 7 to tiles 0 1 2 3.
template <class Product, bool kBelow>
HWY_INLINE void SumTiles(const unsigned char* x, int64_t row_bytes, const unsigned char* weights,
                         int64_t input_bytes, TilesAhead ahead, void* sums) {
  auto* const above = static_cast<unsigned char*>(sums);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBelow) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < input_bytes; k += kTileBytes) {
    for (int64_t i = 0; i < ahead.step; i += kTileBytes) {
      if (ahead.is_shared) {
        FetchLine<kSecondCache>(ahead.at + i);  // as SharedAhead
      } else {
        __builtin_prefetch(ahead.at + i);
      }
    }
    ahead.at += ahead.step;
    _tile_loadd(4, x + k, row_bytes);
    _tile_loadd(6, weights, kPanelRow);
    Product::template Add<0>();
    _tile_loadd(7, weights + kTileBytes, kPanelRow);
    Product::template Add<1>();
    if constexpr (kBelow) {
      _tile_loadd(5, x + kTileRows * row_bytes + k, row_bytes);
      Product::template Add<2>();
      Product::template Add<3>();
    }
    weights += kTurn;
  }
  _tile_stored(0, above, kPanelRow);
  _tile_stored(1, above + kTileBytes, kPanelRow);
  if constexpr (kBelow) {
    auto* const below = above + kTileRows * kPanelRow;
    _tile_stored(2, below, kPanelRow);
    _tile_stored(3, below + kTileBytes, kPanelRow);
  }
}

// The quantized rows of a call, which begin with `head` bytes that are no inputs.
struct TileRows {
  int64_t head;
  int64_t row_bytes;
  int64_t input_bytes;  // a multiple of kTileBytes
};

// Calls Product::Store(call, sums, row, rows, column) for the sums of all rows and 16 columns at a
// time. The sums of two rows are kPanel apart.
template <class Product>
void AllTiles(const LinearCall& call, const TileRows& inputs, int64_t begin, int64_t end) {
  const int64_t rows = call.rows.rows;
  if (rows <= 0) return;
  // All blocks have as many rows, so that the tiles keep their shapes.
  const int64_t blocks = (rows + 2 * kTileRows - 1) / (2 * kTileRows);
  const int64_t block = (rows + blocks - 1) / blocks;
  const int64_t panel_bytes = inputs.input_bytes * kPanel;
  const TileShapes shapes(block);
  asm volatile("" : : "r"(&shapes) : "memory");  // GCC does not know that all of it is read
  _tile_loadconfig(&shapes);
  HWY_ALIGN typename Product::Sum sums[2 * kTileRows * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    const auto* const weights =
        static_cast<const unsigned char*>(call.linear.bytes) + panel * panel_bytes;
    // A single block requests what it will read soon. Several blocks share the next panel, because
    // all but the first find this one in the cache.
    TilesAhead ahead = {weights + 2 * kTurn, kTurn, false};
    if (blocks > 1) ahead = {weights + panel_bytes, kTurn / blocks, true};
    for (int64_t first = 0; first < rows; first += block) {
      // The last block may begin with rows that the block before it has stored.
      const int64_t from = std::min(first, rows - block);
      const auto* const x = static_cast<const unsigned char*>(call.rows.quantized) +
                            from * inputs.row_bytes + inputs.head;
      if (block > kTileRows) {
        SumTiles<Product, true>(x, inputs.row_bytes, weights, inputs.input_bytes, ahead, sums);
      } else {
        SumTiles<Product, false>(x, inputs.row_bytes, weights, inputs.input_bytes, ahead, sums);
      }
      ahead.at += panel_bytes / blocks;
      for (int64_t column = 0; column < kPanel; column += kTileColumns) {
        Product::Store(call, sums + (first - from) * kPanel + column, first, from + block - first,
                       panel * kPanel + column);
      }
    }
  }
  _tile_release();
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
