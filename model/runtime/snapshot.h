#ifndef AFT_MODEL_RUNTIME_SNAPSHOT_H_
#define AFT_MODEL_RUNTIME_SNAPSHOT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/sampling/params.h"

namespace aft {

// A sequence beside its state.
struct SequenceRecord {
  SamplingParams params;
  int64_t next_position = 0;  // tokens consumed
  uint64_t sampled = 0;       // index of the next output token
};

// A sequence as bytes: a header (magic, layout version, fingerprints, the record), the state, and a
// checksum over both. Little-endian.

// Bytes of the header; the state follows it.
int64_t SnapshotHeaderBytes();

// The header and room for `state_bytes`, to be filled in place and then sealed.
std::string BeginSnapshot(uint64_t model, uint64_t layout, const SequenceRecord& record,
                          int64_t state_bytes);
void SealSnapshot(std::string* snapshot);

struct OpenedSnapshot {
  SequenceRecord record;
  absl::string_view state;  // into the snapshot
};

// INVALID_ARGUMENT says what is wrong: not a snapshot, of another version, damaged, of another
// model or state layout.
absl::StatusOr<OpenedSnapshot> OpenSnapshot(absl::string_view snapshot, uint64_t model,
                                            uint64_t layout);

}  // namespace aft

#endif  // AFT_MODEL_RUNTIME_SNAPSHOT_H_
