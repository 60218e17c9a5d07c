#pragma once

#include <cstdint>

namespace aft {

// Rows of different lengths, one after the other in [N, width] matrices. Row i is the tokens
// [offset[i], offset[i + 1]) of the matrices. They are at positions position[i], position[i] + 1,
// ... of the sequence whose state is in slot[i]. The arrays are on the model's device, are
// borrowed, and must outlive the call. A slot occurs at most once.
struct RaggedBatch {
  int64_t rows = 0;
  const int32_t* slot = nullptr;      // [rows]; negative: padding, with zeros as output and no
                                      // state
  const int64_t* position = nullptr;  // [rows]; 0: the previous content of the slot is ignored
  const int64_t* offset = nullptr;    // [rows + 1]; offset[0] = 0, offset[rows] = N
  // [rows] or null: nonzero for tokens that the model itself generated. Only block-local attention
  // with full_decode treats them differently from the tokens of a prompt.
  const uint8_t* generated = nullptr;
};

// Whole sequences, each from its first token, one after the other. They have no state. Sequence i
// is the tokens [offset[i], offset[i + 1]). The arrays are borrowed.
struct SequenceBatch {
  int64_t sequences = 0;
  const int64_t* offset = nullptr;  // [sequences + 1]; offset[0] = 0, offset[sequences] = N
  // [N] or null: added to every score in which the token is the key. A value is 0, or -inf (values
  // up to kMaskedBelow count as -inf). The output of a row that sees no key at all is zeros.
  const float* mask = nullptr;
  // If > 0, every sequence is an image of this width, stored row by row, and its length is a
  // multiple of this width. Only AFT-conv with a 2-D filter reads it.
  int64_t grid_width = 0;

  // Only Mixer::EncodePairs reads the following members.
  //
  // [sequences] or null; pairs[i] [queries, keys] of sequence i, or null: added to the score of
  // each pair in addition to the mask, by the same rules.
  const float* const* pairs = nullptr;
  // [sequences + 1] or null. If set, keys are in a matrix of their own, and sequence i has the rows
  // [key_offset[i], key_offset[i + 1]) of it; `mask` is then indexed like that matrix. If null, the
  // keys are those of the queries' tokens.
  const int64_t* key_offset = nullptr;
  bool by_pairs() const { return pairs != nullptr || key_offset != nullptr; }
};
inline constexpr float kMaskedBelow = -1e30F;

}  // namespace aft
