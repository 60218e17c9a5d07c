#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "server/api/oip/tensors.h"

namespace aft::server::kserve {

// What attention_mask may be of a request.
struct MaskForm {
  std::vector<int64_t> shape{};  // of a mask of keys: [B, T], [B, H, W], or [T] of ids
  int64_t rows = 0;              // B
  int64_t queries = 0;           // of a row
  int64_t keys = 0;              // likewise
  bool causal = false;
  bool pairs = false;    // EncoderForms::pairs
  bool numbers = false;  // a mask of keys may be of numbers
};

// 0: visible, at most -1e30: hidden, as EncoderInput has them.
struct Masks {
  std::vector<float> keys{};  // of all rows, one after the other; empty: all are visible
  // EncoderInput::pairs of each row; empty: every pair is visible that the model lets see.
  std::vector<PairMask> pairs{};
};

// BOOL, INT64 and INT32 are 1 where a key is visible; FP32 is added to its scores. The mask has the
// shape of the keys; or it has a number for each pair: [T, T, B] or [T, T, 1] (labml's: query, key,
// row), [T, T], or [B, 1, T, T] or [1, 1, T, T] (LSG's: row, 1, query, key). [B, T] where B is T is
// a mask of keys; what else could be of two kinds is refused. A mask of pairs may not show a causal
// model what comes later. INVALID_ARGUMENT begins with the tensor's name.
absl::StatusOr<Masks> ReadMasks(const InputTensor& mask, const MaskForm& form);

}  // namespace aft::server::kserve
