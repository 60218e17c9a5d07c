#pragma once

#include <cstdint>

#include "model/api/model_runner.h"

namespace aft {

// A snapshot's header and checksum.
inline constexpr int64_t kSnapshotFrameBytes = 48;

// The most bytes that ModelRunner::SnapshotSlot returns: the state, the header and the checksum.
inline int64_t MaxSnapshotBytes(const ModelInfo& info) {
  return info.state_bytes + kSnapshotFrameBytes;
}

// The same of a sequence that has consumed at most `tokens`: less where the state grows with them.
inline int64_t MaxSnapshotBytes(const ModelInfo& info, int64_t tokens) {
  const int64_t unused = info.max_seq_len - (tokens + info.state_block_tokens);
  const int64_t saved = unused > 0 ? unused * info.state_bytes_per_token : 0;
  return MaxSnapshotBytes(info) - saved;
}

}  // namespace aft
