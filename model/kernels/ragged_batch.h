#pragma once

#include <cstdint>

namespace aft {

// Rows of different lengths, laid one after the other in [N, width] matrices, as arrays on the
// model's device. Row i is the tokens [offset[i], offset[i + 1]) of the matrices; they sit at
// positions position[i], position[i] + 1, ... of the sequence whose state is in slot[i]. Borrowed:
// the arrays outlive the call. A slot occurs at most once.
struct RaggedBatch {
  int64_t rows = 0;
  const int32_t* slot = nullptr;      // [rows]; negative: padding, zeros out and no state touched
  const int64_t* position = nullptr;  // [rows]; 0: what the slot held is ignored
  const int64_t* offset = nullptr;    // [rows + 1]; offset[0] = 0, offset[rows] = N
  // [rows] or null: nonzero for tokens that the model itself generated. Only block-local attention
  // with full_decode tells them from a prompt's.
  const uint8_t* generated = nullptr;
};

// Whole sequences, each from its first token, laid one after the other: no state. Sequence i is the
// tokens [offset[i], offset[i + 1]). Borrowed arrays.
struct SequenceBatch {
  int64_t sequences = 0;
  const int64_t* offset = nullptr;  // [sequences + 1]; offset[0] = 0, offset[sequences] = N
  // [N] or null: added to every score of that token as a key; 0 or -inf (or very negative: up to
  // kMaskedBelow counts as -inf). A row that sees no key at all gives zeros.
  const float* mask = nullptr;
  // > 0: a sequence is an image, row by row, of this width; its length is a multiple of it. Only
  // AFT-conv with a 2-D filter looks at it.
  int64_t grid_width = 0;

  // What follows, only Mixer::EncodePairs takes.
  //
  // [sequences] or null; pairs[i] [queries, keys] of sequence i, or null: added to the score of
  // each pair beside the mask, by the same rules.
  const float* const* pairs = nullptr;
  // [sequences + 1] or null: sequence i has the keys [key_offset[i], key_offset[i + 1]) of a matrix
  // of their own, to which `mask` belongs too. Null: they are the queries' tokens.
  const int64_t* key_offset = nullptr;
  bool by_pairs() const { return pairs != nullptr || key_offset != nullptr; }
};
inline constexpr float kMaskedBelow = -1e30F;

}  // namespace aft
