#ifndef AFT_MODEL_KERNELS_RAGGED_BATCH_H_
#define AFT_MODEL_KERNELS_RAGGED_BATCH_H_

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
};

}  // namespace aft

#endif  // AFT_MODEL_KERNELS_RAGGED_BATCH_H_
