#include "model/kernels/attention/attention.h"

#include <algorithm>
#include <limits>

#include "model/kernels/attention/attention_head-inl.h"
#include "model/kernels/attention/attention_tile-inl.h"
#include "model/kernels/attention/attention_tile.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

HeadKeys StateKeys(const AttentionParams& params, int64_t head, float* slot) {
  const AttentionStateLayout layout(params);
  HeadKeys keys = {};
  // Position keys are never written: Put stores none.
  keys.k = params.stores_keys() ? slot + layout.Keys() + head * layout.KeyFloatsPerHead()
                                : const_cast<float*>(params.position_keys);
  keys.v = slot + layout.Values() + head * layout.ValueFloatsPerHead();
  keys.span = layout.span();
  keys.spans = layout.spans();
  if (layout.keeps_first()) {
    keys.first_k = slot + layout.FirstKey() + head * params.score_width;
    keys.first_v = slot + layout.FirstValue() + head * params.value_width;
  }
  return keys;
}

// Computes rows [row, row + rows) of one token each with location-based attention. Their sequences
// share the keys, so they form one tile, and the keys are read from memory once for all of them.
void AttendTogether(const AttentionParams& params, const RaggedBatch& batch, int64_t row,
                    int64_t rows, const float* packed, int64_t packed_stride, float* state,
                    int64_t slot_stride, float* y, int64_t y_stride, float* scratch) {
  const float* values[kTileRows];
  int64_t seen[kTileRows];
  float factor[kTileRows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = batch.position[row + r];
    float* v = StateKeys(params, 0, state + batch.slot[row + r] * slot_stride).v;
    std::copy_n(packed + r * packed_stride + params.ValueColumn(), params.value_width,
                v + position * params.value_width);
    values[r] = v;
    seen[r] = position + 1;
    factor[r] = params.scale;
  }
  AttentionTile tile(params, nullptr, kTileRows, scratch);
  tile.Start(rows, packed, packed_stride, factor);
  tile.Add({params.position_keys, nullptr, nullptr, 0, 0, values, seen});
  tile.Finish(y, y_stride);
}

// The number of rows of [row, end) that AttendTogether can process; 0 if it is not more than one.
int64_t RowsTogether(const AttentionParams& params, const RaggedBatch& batch, int64_t row,
                     int64_t end) {
  if (params.stores_keys()) return 0;
  int64_t rows = 0;
  while (rows < std::min(end - row, kTileRows) && batch.slot[row + rows] >= 0 &&
         batch.offset[row + rows + 1] - batch.offset[row + rows] == 1) {
    ++rows;
  }
  return rows > 1 ? rows : 0;
}

void AttentionForwardImpl(const AttentionParams& params, const RaggedBatch& batch,
                          const float* packed, int64_t packed_stride, float* state,
                          int64_t slot_stride, float* y, int64_t y_stride, float* scratch,
                          int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / params.heads;
    const int64_t head = unit % params.heads;
    const int64_t token = batch.offset[row];
    const int64_t tokens = batch.offset[row + 1] - token;
    float* to = y + token * y_stride;
    if (const int64_t rows = RowsTogether(params, batch, row, end); rows > 0) {
      AttendTogether(params, batch, row, rows, packed + token * packed_stride, packed_stride, state,
                     slot_stride, to, y_stride, scratch);
      unit += rows - 1;
      continue;
    }
    if (batch.slot[row] < 0) {
      for (int64_t i = 0; i < tokens; ++i) {
        std::fill_n(to + i * y_stride + head * params.value_width, params.value_width, 0.0F);
      }
      continue;
    }
    const HeadKeys keys = StateKeys(params, head, state + batch.slot[row] * slot_stride);
    const int64_t first = batch.position[row];
    AttentionHead attention(params, head, keys, first, packed + token * packed_stride,
                            packed_stride, to, y_stride, scratch);
    const bool generated = batch.generated != nullptr && batch.generated[row] != 0;
    const bool local = params.block_size > 0 && !(params.full_decode && generated);
    for (int64_t t = first; t < first + tokens;) {
      const int64_t tile_end = attention.TileEnd(t, first + tokens);
      for (int64_t i = t; i < tile_end; ++i) attention.Put(i);
      attention.Attend(t, tile_end, local, first + tokens);
      t = tile_end;
    }
  }
}

void AttentionEncodeImpl(const AttentionParams& params, const SequenceBatch& batch,
                         const float* packed, int64_t packed_stride, float* y, int64_t y_stride,
                         float* scratch, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t sequence = unit / params.heads;
    const int64_t head = unit % params.heads;
    const int64_t token = batch.offset[sequence];
    const int64_t tokens = batch.offset[sequence + 1] - token;
    if (tokens == 0) continue;
    HeadKeys keys = {};
    keys.span = params.block_size > 0 ? std::min(params.block_size, tokens) : tokens;
    keys.spans = (tokens + keys.span - 1) / keys.span;
    float* free = scratch + AttentionScratchFloats(params);
    keys.k = const_cast<float*>(params.position_keys);
    if (params.stores_keys()) {
      keys.k = free;
      free += keys.spans * RoundUpToKeyBlock(keys.span) * params.score_width;
    }
    keys.v = free;
    free += keys.spans * keys.span * params.value_width;
    if (batch.mask != nullptr) {
      for (int64_t i = 0; i < tokens; ++i) {
        const float mask = batch.mask[token + i];
        free[i] = mask <= kMaskedBelow ? -std::numeric_limits<float>::infinity() : mask;
      }
      keys.bias = free;
    }
    AttentionHead attention(params, head, keys, 0, packed + token * packed_stride, packed_stride,
                            y + token * y_stride, y_stride, scratch);
    for (int64_t t = 0; t < tokens; ++t) attention.Put(t);
    const bool local = params.block_size > 0;
    const bool first_sees_all = local && params.global_token && !params.causal;
    for (int64_t t = 0; t < tokens;) {
      const bool sees_all = first_sees_all && t == 0;
      const int64_t tile_end = sees_all ? 1 : attention.TileEnd(t, tokens);
      attention.Attend(t, tile_end, local && !sees_all, tokens);
      t = tile_end;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(AttentionForwardImpl);
AFT_EXPORT(AttentionEncodeImpl);

int64_t AttentionScratchFloats(const AttentionParams& params) {
  return kKeyBlock * params.score_width + AttentionTileFloats(params, kTileRows);
}

int64_t AttentionEncodeScratchFloats(const AttentionParams& params, int64_t tokens) {
  int64_t spans = 1;
  int64_t span = tokens;
  if (params.block_size > 0) {
    span = std::min(params.block_size, tokens);
    spans = (tokens + params.block_size - 1) / params.block_size;
  }
  const int64_t keys = params.stores_keys() ? spans * RoundUpToKeyBlock(span) : 0;
  return AttentionScratchFloats(params) + keys * params.score_width +
         spans * span * params.value_width + tokens + kKeyGroup;
}

void AttentionForward(const AttentionParams& params, const RaggedBatch& batch, const float* packed,
                      int64_t packed_stride, float* state, int64_t slot_stride, float* y,
                      int64_t y_stride, float* scratch, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AttentionForwardImpl)
  (params, batch, packed, packed_stride, state, slot_stride, y, y_stride, scratch, begin, end);
}

void AttentionEncode(const AttentionParams& params, const SequenceBatch& batch, const float* packed,
                     int64_t packed_stride, float* y, int64_t y_stride, float* scratch,
                     int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AttentionEncodeImpl)
  (params, batch, packed, packed_stride, y, y_stride, scratch, begin, end);
}

void PackKeys(const float* keys, int64_t rows, int64_t width, float* packed) {
  std::fill_n(packed, RoundUpToKeyBlock(rows) * width, 0.0F);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      packed[(i / kKeyBlock * width + c) * kKeyBlock + i % kKeyBlock] = keys[i * width + c];
    }
  }
}

}  // namespace aft::kernels
#endif
