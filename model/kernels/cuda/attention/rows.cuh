#pragma once

#include <cstdint>

#include "model/kernels/cuda/attention/common.cuh"
#include "model/kernels/cuda/row_tiles.cuh"
#include "model/kernels/ragged_batch.h"

// Prompt chunks and whole texts as tiles of queries, the keys that a query sees, and where these
// are: keys of the chunk in `packed`, older ones in the state.
namespace aft::kernels::cuda {

struct AttendArgs {
  AttentionShape shape;
  In packed;
  Out y;
  State state;           // prefill; base is null for texts
  ChunkRows rows;        // or texts
  const float* mask;     // texts: [tokens] or null
  const float* factors;  // kCosine: [tokens, heads, 2]: of the query and of the key
  // Whether addresses and widths allow access to 16 bytes of a head's columns, or two of y, at
  // once.
  bool packed_in_16_bytes;
  bool state_in_16_bytes;
  bool y_in_pairs;
};

// Tokens [begin, end) of one row, all in one tile.
struct QueryTile {
  int row;
  int slot;
  int first;       // position of the row's first token in this batch
  int tokens_end;  // position after its last one
  int begin;
  int end;
  int64_t token;  // index in packed of the row's first token
  bool generated;

  __device__ int64_t TokenOf(int t) const { return token + (t - first); }
};

// Tile `index` of the rows' list (row_tiles.cuh), or an empty one: end <= begin. All lanes of each
// warp must call it.
__device__ inline QueryTile FindTile(const AttendArgs& args, int64_t index, int tile) {
  const ChunkRows& rows = args.rows;
  const int64_t row = RowOfTile(rows, index, tile);
  QueryTile found = {};
  found.row = static_cast<int>(row);
  found.slot = rows.slot == nullptr ? 0 : rows.slot[row];
  found.first = rows.position == nullptr ? 0 : static_cast<int>(rows.position[row]);
  found.generated = rows.generated != nullptr && rows.generated[row] != 0;
  found.token = rows.offset[row];
  found.tokens_end = found.first + static_cast<int>(rows.offset[row + 1] - found.token);
  const int number = static_cast<int>(index - TilesBefore(tile, row, found.token));
  const int start = (found.first / tile + number) * tile;
  found.begin = max(found.first, start);
  found.end = min(found.tokens_end, start + tile);
  return found;
}

// The keys that tokens see: token t sees [From(t), To(t)), and with `global` also token 0.
struct Vision {
  __device__ Vision(const AttentionShape& shape, const QueryTile& tile)
      : block(shape.full_decode && tile.generated ? 0 : shape.block),
        causal(shape.causal),
        global(block > 0 && shape.global_token),
        tokens(tile.tokens_end) {}

  __device__ int From(int t) const { return block == 0 ? 0 : max(t / block - 1, 0) * block; }
  __device__ int To(int t) const { return global && !causal && t == 0 ? tokens : OrdinaryTo(t); }
  // To(t) without the exception for t = 0.
  __device__ int OrdinaryTo(int t) const {
    if (causal) return t + 1;
    return block == 0 ? tokens : min(tokens, (t / block + 2) * block);
  }

  int block;  // 0: no limit
  bool causal;
  bool global;
  int tokens;
};

enum class Sight { kNone, kSome, kAll };

// The keys that tokens [t0, t1) see together.
struct RangeSight {
  __device__ RangeSight(const Vision& vision, int t0, int t1)
      : from_first(vision.From(t0)),
        from_last(vision.From(t1 - 1)),
        to_least(vision.OrdinaryTo(t0)),
        to_most(max(vision.To(t0), vision.To(t1 - 1))),
        global(vision.global) {}

  __device__ Sight Of(int j0, int j1) const {
    if (j0 >= to_most || (j1 <= from_first && !(global && j0 == 0))) return Sight::kNone;
    return j0 >= from_last && j1 <= to_least ? Sight::kAll : Sight::kSome;
  }
  // Whether token 0 is visible and comes before the keys from from_first on.
  __device__ bool first_apart() const { return global && from_first > 0; }

  int from_first;
  int from_last;
  int to_least;
  int to_most;
  bool global;
};

// The keys that one token sees: [from, to), and with Vision::global also token 0.
struct TokenSight {
  __device__ TokenSight(const Vision& vision, int t) : from(vision.From(t)), to(vision.To(t)) {}

  int from;
  int to;
};

// Keys and values of one head of a row.
struct HeadKeys {
  __device__ HeadKeys(const AttendArgs& args, const QueryTile& tile, int head)
      : shape(args.shape),
        first_token(tile.token - tile.first),
        mask(args.mask == nullptr ? nullptr : args.mask + first_token),
        factors(args.factors == nullptr
                    ? nullptr
                    : args.factors + (first_token * args.shape.heads + head) * 2),
        stride(args.packed.stride),
        packed_k(first_token * stride + shape.key_column + int64_t{head} * shape.score_width),
        packed_v(first_token * stride + shape.value_column + int64_t{head} * shape.value_width),
        stored(tile.first),
        stored_k(tile.first) {
    if (!shape.stores_keys()) stored_k = INT32_MAX;
    k = shape.position_keys;
    if (args.state.base == nullptr) return;
    const float* const state = args.state.base + tile.slot * args.state.slot_stride;
    if (shape.stores_keys()) k = state + shape.keys + head * shape.head_keys;
    v = state + shape.values + head * shape.head_values;
    if (shape.first_key >= 0) {
      first_k = state + shape.first_key + int64_t{head} * shape.score_width;
      first_v = state + shape.first_value + int64_t{head} * shape.value_width;
    }
  }

  __device__ bool Masked(int j) const { return mask != nullptr && mask[j] <= kMaskedBelow; }
  // The factors of a query and of a key of the chunk's tokens.
  __device__ float QueryFactor(int t) const {
    if (factors != nullptr) return factors[int64_t{t} * shape.heads * 2];
    return shape.score == Score::kDot ? shape.scale : 1.0F;
  }
  __device__ float KeyFactor(int j) const {
    return factors == nullptr ? 1.0F : factors[int64_t{j} * shape.heads * 2 + 1];
  }
  // Stored key j; its columns are *step floats apart.
  __device__ const float* StoredKey(int j, int* step) const {
    *step = static_cast<int>(kKeyBlock);
    if (!shape.stores_keys()) return k + KeyOffset(j, shape.score_width);
    if (j == 0 && first_k != nullptr) {
      *step = 1;
      return first_k;
    }
    return k + SpanKeys(shape, j / shape.span) + KeyOffset(j % shape.span, shape.score_width);
  }
  __device__ const float* StoredValue(int j) const {
    if (j == 0 && first_v != nullptr) return first_v;
    return v + SpanValues(shape, j / shape.span) + int64_t{j % shape.span} * shape.value_width;
  }
  __device__ int64_t PackedKey(int j) const { return packed_k + j * stride; }
  __device__ int64_t PackedValue(int j) const { return packed_v + j * stride; }

  const AttentionShape& shape;
  int64_t first_token;  // index in packed of position 0, if the row began there
  const float* mask;    // by position
  const float* factors;
  int64_t stride;
  int64_t packed_k;
  int64_t packed_v;
  int stored;    // the values at positions below this are stored
  int stored_k;  // the keys at positions below this are stored
  const float* k = nullptr;
  const float* v = nullptr;
  const float* first_k = nullptr;
  const float* first_v = nullptr;
};

}  // namespace aft::kernels::cuda
