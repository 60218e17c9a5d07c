#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/sampling_params.h"

namespace aft {

// A sequence beside its state.
struct SequenceRecord {
  SamplingParams params;
  int64_t next_position = 0;  // tokens consumed
  uint64_t sampled = 0;       // index of the next output token
  // The prompt is over: what the sequence consumes now is RaggedBatch::generated.
  bool generates() const { return sampled > 0; }
  // What kLastSampled stands for; kNoToken: nothing yet.
  TokenId last_sampled = kNoToken;
};

// A sequence as bytes: a header (magic, layout version, fingerprints, the record without its
// sampling parameters), the state, what the sequence has had of each token (TokenCount; only of
// sequences with penalties), and a checksum over all of it. Little-endian. Sampling parameters are
// left out because every caller has them: an option that is added to them voids no snapshot.

// ModelInfo::fingerprint, from those of the network and of its state's layout.
uint64_t SnapshotFingerprint(uint64_t model, uint64_t layout, absl::string_view weight_format);

// Bytes of the header; the state follows it.
int64_t SnapshotHeaderBytes();

// The header, room for `state_bytes` and behind it for `counts` TokenCounts, to be filled in place
// and then sealed.
std::string BeginSnapshot(uint64_t model, uint64_t layout, const SequenceRecord& record,
                          int64_t state_bytes, int64_t counts = 0);
void SealSnapshot(std::string* snapshot);

struct OpenedSnapshot {
  SequenceRecord record;     // its sampling parameters are the default ones
  absl::string_view state;   // into the snapshot
  absl::string_view counts;  // likewise; TokenCounts, not aligned
};

// INVALID_ARGUMENT says what is wrong: not a snapshot, of another version, damaged, of another
// model or state layout.
absl::StatusOr<OpenedSnapshot> OpenSnapshot(absl::string_view snapshot, uint64_t model,
                                            uint64_t layout);

}  // namespace aft
