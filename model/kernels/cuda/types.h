#pragma once

#include <cstdint>

#include "model/config/formats.h"
#include "model/kernels/state_view.h"

struct CUstream_st;  // declared by CUDA

// Types that the interfaces of the CUDA kernels share. They need neither torch nor CUDA's headers.
//
// For every function below model/kernels/cuda: pointers are to device memory unless said otherwise.
// Work is queued on the caller's stream. Nothing is allocated and nothing waits, so a call may be
// captured into a graph. The result is a cudaError_t value, 0 when the launches were accepted.
// Numbers that decide the shape of a launch (counts, widths) are host arguments.
namespace aft::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// Matrices [N, width]. Rows are `stride` numbers apart: a multiple of 16 bytes if width is one.
//
// A row of kInt8 is quantized as on the CPU (model/kernels/linear/linear_rows.h). It has
// QuantizedColumns(width) integers, which begin at a multiple of 16 bytes. Those beyond the width
// may have any value, because weights are 0 there. The row's scale, an fp32, is kScaleBytes before
// its first integer. So the rows of a dense matrix are QuantizedStride(width) bytes apart. Rows of
// a usual width begin at a multiple of 32 bytes, which is what memory reads at least.
//
// Mixers (AFT, AFT-conv, attention, RWKV) read fp32 and write fp32, bf16 or fp16. Other types are
// cudaErrorInvalidValue.
struct In {
  const void* data = nullptr;
  Number type = Number::kFp32;
  int64_t stride = 0;
};
struct Out {
  void* data = nullptr;
  Number type = Number::kFp32;
  int64_t stride = 0;
};

inline constexpr int64_t kScaleBytes = 32;
inline constexpr int64_t QuantizedColumns(int64_t width) { return (width + 15) / 16 * 16; }
inline constexpr int64_t QuantizedStride(int64_t width) {
  return kScaleBytes + QuantizedColumns(width);
}

using State = StateView;  // on the device

// The most rows, chunks or texts of one call: a launch's second dimension holds no more.
inline constexpr int64_t kMaxRows = 65535;

// The most tokens of a sequence. Many kernels count positions in 32 bits, and their sum with a tile
// or a block must fit too.
inline constexpr int64_t kMaxSequenceTokens = int64_t{1} << 30;

// Decode rows: row i of the matrices is a token of the sequence in slot[i]. A slot occurs once.
struct StepRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;      // [rows]; negative: padding, with zeros as output and no
                                      // state
  const int64_t* position = nullptr;  // [rows]; 0: the previous content of the slot is ignored
  // [rows] or null: RaggedBatch::generated.
  const uint8_t* generated = nullptr;
  // [rows] or null: see AftLookahead (aft.h).
  const int32_t* age = nullptr;
};

// Prompt chunks: RaggedBatch, with the numbers that a launch needs.
struct ChunkRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;       // [rows]; negative: padding
  const int64_t* position = nullptr;   // [rows], of the first token
  const int64_t* offset = nullptr;     // [rows + 1]; offset[0] = 0, offset[rows] = tokens
  const uint8_t* generated = nullptr;  // [rows] or null
  int64_t tokens = 0;                  // N
  int64_t longest = 0;                 // tokens of the longest row, or more
};

// Whole sequences without state: SequenceBatch, with the numbers that a launch needs.
struct Texts {
  int64_t sequences = 0;
  const int64_t* offset = nullptr;  // [sequences + 1]
  const float* mask = nullptr;      // [N] or null; see SequenceBatch::mask
  int64_t grid_width = 0;
  int64_t tokens = 0;
  int64_t longest = 0;

  // The texts as chunks without slots that begin at position 0.
  ChunkRows rows() const { return {sequences, nullptr, nullptr, offset, nullptr, tokens, longest}; }
};

}  // namespace aft::kernels::cuda
