#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// The state of a sequence as bytes: a header (magic, layout version, fingerprints, position), the
// state, and a checksum over both. Little-endian. How the sequence samples is left out, because
// every caller knows it (SlotTerms). So a new sampling option makes no snapshot invalid.

// ModelInfo::fingerprint, from the fingerprints of the network and of its state's layout.
uint64_t SnapshotFingerprint(uint64_t model, uint64_t layout, absl::string_view weight_format);

// Bytes of the header; the state follows it.
int64_t SnapshotHeaderBytes();

// Returns a header and room for `state_bytes`. The caller fills this room and then seals the
// snapshot. `position` is the number of tokens that the sequence has consumed.
std::string BeginSnapshot(uint64_t model, uint64_t layout, int64_t position, int64_t state_bytes);
void SealSnapshot(std::string* snapshot);

struct OpenedSnapshot {
  int64_t position = 0;     // >= 0
  absl::string_view state;  // points into the snapshot
};

// INVALID_ARGUMENT says what is wrong: not a snapshot, of another version, damaged, of another
// model or state layout.
absl::StatusOr<OpenedSnapshot> OpenSnapshot(absl::string_view snapshot, uint64_t model,
                                            uint64_t layout);

}  // namespace aft
