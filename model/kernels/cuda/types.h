#pragma once

#include <cstdint>

#include "model/config/formats.h"
#include "model/kernels/state_view.h"

struct CUstream_st;  // CUDA's

// What the CUDA kernels' interfaces share. Torch-free and free of CUDA's headers.
//
// Every function below model/kernels/cuda: pointers are to device memory unless said otherwise;
// work is queued on the caller's stream; nothing is allocated, nothing waits, so a call may be
// captured into a graph; the result is a cudaError_t value, 0 when the launches were accepted. What
// decides the shape of a launch (counts, widths) is in host arguments.
namespace aft::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// Matrices [N, width]; rows are `stride` numbers apart, a multiple of 16 bytes when width is one.
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

using State = StateView;  // on the device

// Rows, chunks or texts of one call: more do not fit into a launch's second dimension.
inline constexpr int64_t kMaxRows = 65535;

// Decode rows: row i of the matrices is one token of the sequence in slot[i]. A slot occurs once.
struct StepRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;      // [rows]; negative: padding, zeros out and no state touched
  const int64_t* position = nullptr;  // [rows]; 0: what the slot held is ignored
  // [rows] or null: RaggedBatch::generated.
  const uint8_t* generated = nullptr;
  // [rows] or null: see AftLookahead (aft.h).
  const int32_t* age = nullptr;
};

// Prompt chunks: RaggedBatch, with what a launch must know of it.
struct ChunkRows {
  int64_t rows = 0;
  const int32_t* slot = nullptr;       // [rows]; negative: padding
  const int64_t* position = nullptr;   // [rows], of the first token
  const int64_t* offset = nullptr;     // [rows + 1]; offset[0] = 0, offset[rows] = tokens
  const uint8_t* generated = nullptr;  // [rows] or null
  int64_t tokens = 0;                  // N
  int64_t longest = 0;                 // tokens of the longest row, or more
};

// Whole sequences without state: SequenceBatch, likewise.
struct Texts {
  int64_t sequences = 0;
  const int64_t* offset = nullptr;  // [sequences + 1]
  const float* mask = nullptr;      // [N] or null; see SequenceBatch::mask
  int64_t grid_width = 0;
  int64_t tokens = 0;
  int64_t longest = 0;

  // As chunks of no slots, from position 0 on.
  ChunkRows rows() const { return {sequences, nullptr, nullptr, offset, nullptr, tokens, longest}; }
};

}  // namespace aft::kernels::cuda
