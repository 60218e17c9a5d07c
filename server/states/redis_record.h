#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/states/state_folder.h"
#include "server/states/state_sealer.h"

// A state as the value of a key of Redis. Pure functions.
//
//   "AFTREDIS1" | when it expires, in ms since 1970 | bytes | client | owner | model |
//   sealed summary | sealed state
//
// The first six fields are lines, each with a line feed. The summary is the state without its
// snapshot, its counts and its note, so it always has the same length. Both seals cover the id, the
// lines and the kind of the part, so no part of a record fits into another one. An attacker without
// the key can at most put an old record back, under its own id, until it expires.
namespace aft::server {

// The most bytes of the lines and the summary, with which each record begins.
inline constexpr size_t kMaxRecordHead = 4096;

struct RedisRecord {
  StateFolder::File file;  // its `ttl` is at most 0 after its expiry
  int64_t bytes = 0;       // StateBytes of the whole state
};

// INTERNAL: the id or a name cannot be part of a record.
absl::StatusOr<std::string> SealRecord(const StateSealer& sealer, const StateFolder::File& file,
                                       int64_t now_ms);

// Opens a record from its first kMaxRecordHead bytes, or from all of them. The state in the result
// is the summary. INVALID_ARGUMENT: the bytes are no record, are damaged, or belong to another key,
// id or owner.
absl::StatusOr<RedisRecord> OpenRecordHead(const StateSealer& sealer, absl::string_view id,
                                           absl::string_view owner, absl::string_view head,
                                           int64_t now_ms);

// Opens a whole record. Errors as above. Takes time in proportion to its size.
absl::StatusOr<SequenceState> OpenRecord(const StateSealer& sealer, absl::string_view id,
                                         absl::string_view owner, absl::string_view record);

}  // namespace aft::server
