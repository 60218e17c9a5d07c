#pragma once

#include <cstdint>

#include "model/api/model_runner.h"

namespace aft {

// The most bytes that ModelRunner::SnapshotSlot returns: the state, two bytes for each token that
// the sampler counts, the header and the checksum.
inline int64_t MaxSnapshotBytes(const ModelInfo& info) {
  constexpr int64_t kHeaderAndChecksum = 128;
  return info.state_bytes + 2 * info.vocab_size + kHeaderAndChecksum;
}

}  // namespace aft
