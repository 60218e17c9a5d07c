#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/api/oip/tensors.h"

namespace aft::server::kserve {

// What a bare mixer is told of keys, as EncoderInput::mask of all rows, one after the other; empty
// where every key is visible. `shape`: of the vectors without their width, [B, T] or [B, H, W]. The
// mask has it; or it is a mask of pairs, [T, T] or [T, T, 1], which must hide what a causal mixer
// does not see anyway and nothing else. INVALID_ARGUMENT begins with the tensor's name.
absl::StatusOr<std::vector<float>> ReadKeyMask(const InputTensor& mask,
                                               absl::Span<const int64_t> shape, bool causal);

}  // namespace aft::server::kserve
