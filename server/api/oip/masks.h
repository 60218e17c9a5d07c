#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "server/api/oip/tensors.h"

namespace aft::server::oip {

// Which forms the attention_mask of a request may have.
struct MaskForm {
  std::vector<int64_t> shape{};  // of a mask of keys: [B, T], [B, H, W], or [T] for ids
  int64_t rows = 0;              // B
  int64_t queries = 0;           // per row
  int64_t keys = 0;              // per row
  bool causal = false;
  bool pairs = false;    // EncoderForms::pairs
  bool numbers = false;  // a mask of keys may have numbers
};

// 0 means visible, and at most -1e30 means hidden, as in EncoderInput.
struct Masks {
  std::vector<float> keys{};  // of all rows, one after another; empty: all are visible
  // EncoderInput::pairs of each row. Empty: every pair that the model allows is visible.
  std::vector<PairMask> pairs{};
};

// BOOL, INT64 and INT32 are 1 where a key is visible; FP32 is added to its scores. The mask has the
// shape of the keys, or it has a number for each pair: [T, T, B] or [T, T, 1] (labml's: query, key,
// row), [T, T], or [B, 1, T, T] or [1, 1, T, T] (LSG's: row, 1, query, key). If B is T, [T, T] is
// the mask of keys [B, T]; other ambiguous shapes are refused. A mask of pairs must hide later keys
// from a causal model. INVALID_ARGUMENT begins with the tensor's name.
absl::StatusOr<Masks> ReadMasks(const InputTensor& mask, const MaskForm& form);

}  // namespace aft::server::oip
