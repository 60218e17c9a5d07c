#pragma once

#include <cstdint>

#include "model/kernels/ragged_batch.h"

namespace aft::kernels {

// Softmax attention of h heads, for prompt chunks and single tokens:
//
//   y_t = sum_t' p(t,t') v_t',   p(t,.) = softmax over the visible t' of score(q_t, k_t')
//
// Sources: dot product arXiv 1706.03762; cosine arXiv 1410.5401, eq. 5; additive arXiv 1409.0473;
// location arXiv 1508.04025, eq. 8; block-local: LSG
// (github.com/ccdv-ai/convert_checkpoint_to_lsg).
enum class Score {
  kDot,       // scale * (q . k)
  kCosine,    // softplus(b_t) * cos(q, k); a length below kShortestLength counts as kShortestLength
  kAdditive,  // sum_i w_i tanh(q_i + k_i)
};

inline constexpr double kShortestLength = 1e-6;

struct AttentionParams {
  Score score = Score::kDot;
  float scale = 1.0F;       // kDot
  int64_t heads = 1;        // h
  int64_t score_width = 0;  // of q and k per head
  int64_t value_width = 0;  // of v per head
  bool causal = true;
  // kAdditive: w [h, score_width].
  const float* score_weight = nullptr;
  // Location-based attention: keys belong to positions, not tokens. PackKeys makes them from
  // [position_rows, score_width]. There is one head, and sequences are shorter than position_rows.
  const float* position_keys = nullptr;
  int64_t position_rows = 0;

  // b > 0: block-local. With block(t) = t / b, token t sees t' when block(t) - block(t') is 0 or 1
  // (causal: and t' <= t; bidirectional: or -1). With global_token every token also sees token 0
  // and, bidirectional, token 0 sees every token. With full_decode, generated tokens
  // (RaggedBatch::generated) see every token before them.
  int64_t block_size = 0;
  bool global_token = false;
  bool full_decode = false;

  // The number of tokens that a slot holds. Block-local attention without full_decode does not use
  // it, because it holds two blocks.
  int64_t capacity = 0;

  bool stores_keys() const { return position_keys == nullptr; }
  bool ring() const { return block_size > 0 && !full_decode; }
  int64_t hid() const { return heads * value_width; }
  // The columns of a packed row: q [h * score_width], k [h * score_width] (absent with
  // position_keys), v [hid], strength b [h] (kCosine).
  int64_t KeyColumn() const { return heads * score_width; }
  int64_t ValueColumn() const { return (stores_keys() ? 2 : 1) * heads * score_width; }
  int64_t StrengthColumn() const { return ValueColumn() + hid(); }
};

// Keys are stored in transposed blocks of 32, [score_width, 32], so that vectors run over keys, and
// a GPU's warp reads 32 keys of a column at once.
inline constexpr int64_t kKeyBlock = 32;
inline constexpr int64_t RoundUpToKeyBlock(int64_t keys) {
  return (keys + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
}

// The state of one sequence in one layer, fp32, 64-byte aligned. Tokens are kept in spans. Block i
// of a block-local mixer is span i; without full_decode there are only the last two blocks, block i
// in span i mod 2. All other mixers have one span of `capacity` tokens. Offsets are in floats; per
// head:
//
//   FirstKey()    [h, score_width], FirstValue() [h, value_width]: token 0, kept only when ring()
//                 with global_token
//   Keys()        [h, spans, RoundUpToKeyBlock(span) / 32, score_width, 32]; kCosine: divided by
//                 their length. Absent with position_keys
//   Values()      [h, spans, span, value_width]
struct AttentionStateLayout {
  explicit AttentionStateLayout(const AttentionParams& params) : p(params) {}

  int64_t span() const { return p.block_size > 0 ? p.block_size : p.capacity; }
  int64_t spans() const {
    if (p.ring()) return 2;
    return p.block_size > 0 ? (p.capacity + p.block_size - 1) / p.block_size : 1;
  }
  int64_t KeyFloatsPerHead() const {
    return p.stores_keys() ? spans() * RoundUpToKeyBlock(span()) * p.score_width : 0;
  }
  int64_t ValueFloatsPerHead() const { return spans() * span() * p.value_width; }
  bool keeps_first() const { return p.ring() && p.global_token; }

  int64_t FirstKey() const { return 0; }
  int64_t FirstValue() const { return keeps_first() ? p.heads * p.score_width : 0; }
  int64_t Keys() const { return FirstValue() + (keeps_first() ? p.hid() : 0); }
  int64_t Values() const { return Keys() + p.heads * KeyFloatsPerHead(); }
  int64_t Floats() const { return Values() + p.heads * ValueFloatsPerHead(); }

  const AttentionParams& p;
};

// The floats of scratch that each thread needs.
int64_t AttentionScratchFloats(const AttentionParams& params);
int64_t AttentionEncodeScratchFloats(const AttentionParams& params, int64_t tokens);

// Computes units [begin, end) of batch.rows * heads; unit i is head i % heads of row i / heads.
//
//   packed [N, ...]  rows packed_stride floats apart; columns as in AttentionParams
//   state            first slot's state of this layer; slots are slot_stride floats apart; updated
//   y [N, hid]       rows y_stride floats apart; must not overlap packed
//   scratch          AttentionScratchFloats() of this thread, 64-byte aligned
//
// The result of a token has the same bits however its sequence is cut into chunks, and whatever
// other rows are in the batch. Different units may run at the same time on different threads.
// REQUIRES: causal; positions below capacity.
void AttentionForward(const AttentionParams& params, const RaggedBatch& batch, const float* packed,
                      int64_t packed_stride, float* state, int64_t slot_stride, float* y,
                      int64_t y_stride, float* scratch, int64_t begin, int64_t end);

// Attention over whole sequences without state, causal or bidirectional; unit i is head i % heads
// of sequence i / heads. scratch: AttentionEncodeScratchFloats() for the longest sequence.
void AttentionEncode(const AttentionParams& params, const SequenceBatch& batch, const float* packed,
                     int64_t packed_stride, float* y, int64_t y_stride, float* scratch,
                     int64_t begin, int64_t end);

// Rearranges keys [rows, width] into RoundUpToKeyBlock(rows) * width floats.
void PackKeys(const float* keys, int64_t rows, int64_t width, float* packed);

}  // namespace aft::kernels
