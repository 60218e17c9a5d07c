#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/layers/token_shift.h"
#include "model/mixers/workspace.h"
#include "model/state/aligned_buffer.h"

namespace aft {

// The matrices of one step of up to `max_tokens` tokens, and the scratch memory of each thread.
// Every step reuses them. Callers call this a workspace.
struct Activations {
  // RESOURCE_EXHAUSTED when there is not enough memory. `executor` is borrowed.
  static absl::StatusOr<Activations> Create(const NetworkConfig& config, int64_t max_tokens,
                                            int64_t scratch_floats, const Executor& executor);
  // The number of floats that Create allocates.
  static int64_t Floats(const NetworkConfig& config, int64_t max_tokens, int64_t scratch_floats,
                        int threads);

  AlignedBuffer buffer;
  Workspace shared;
  float* x = nullptr;      // [max_tokens, d] residual stream
  float* mixed = nullptr;  // [max_tokens, max(d, hid)] the mixer's output; norms
  float* wide = nullptr;   // [max_tokens, max(packed width, d_ff)]
  ShiftBuffers shift;      // null in networks without token shift
};

}  // namespace aft
