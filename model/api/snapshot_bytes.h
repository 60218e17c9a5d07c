#pragma once

#include <cstdint>

#include "model/api/model_runner.h"

namespace aft {

// The size of a snapshot's header and checksum.
inline constexpr int64_t kSnapshotFrameBytes = 48;

// The most bytes that KeptState::Snapshot returns: the state, the header and the checksum.
inline int64_t MaxSnapshotBytes(const ModelInfo& info) {
  return info.state_bytes + kSnapshotFrameBytes;
}

// The most bytes for a sequence that has consumed at most `tokens` tokens. This is less than the
// above where the state grows with the tokens.
inline int64_t MaxSnapshotBytes(const ModelInfo& info, int64_t tokens) {
  const int64_t unused = info.max_seq_len - (tokens + info.state_block_tokens);
  const int64_t saved = unused > 0 ? unused * info.state_bytes_per_token : 0;
  return MaxSnapshotBytes(info) - saved;
}

}  // namespace aft
