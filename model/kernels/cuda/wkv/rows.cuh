#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

namespace aft::kernels::cuda::wkv {

// The tokens [begin, end) of a row, and what it has of a state.
struct Row {
  __device__ Row(const ChunkRows& rows, int64_t r)
      : begin(rows.offset == nullptr ? r : rows.offset[r]),
        end(rows.offset == nullptr ? r + 1 : rows.offset[r + 1]),
        slot(rows.slot[r]),
        is_new(rows.position[r] == 0) {}

  int64_t begin;
  int64_t end;
  int32_t slot;  // negative: padding
  bool is_new;   // the slot's old content is ignored
};

}  // namespace aft::kernels::cuda::wkv
