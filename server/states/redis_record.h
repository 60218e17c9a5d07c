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
// with a line feed after each but the last two. The summary is the state without its snapshot and
// its counts, so always as long. The id and the lines are under both seals, each as its own kind:
// no part of a record fits into another one. Whoever has no key can at most put an old record back,
// under its own id, until it expires.
namespace aft::server {

// Of every record, at its beginning: the lines and the summary.
inline constexpr size_t kMaxRecordHead = 4096;

struct RedisRecord {
  StateFolder::File file;  // `ttl`: at most 0 when its time is over
  int64_t bytes = 0;       // StateBytes of the whole state
};

// INTERNAL: not a name and names that can be records.
absl::StatusOr<std::string> SealRecord(const StateSealer& sealer, const StateFolder::File& file,
                                       int64_t now_ms);

// From its first kMaxRecordHead bytes, or all: the state is the summary. INVALID_ARGUMENT: it is
// none, or of another key, or not of that id and owner, or damaged.
absl::StatusOr<RedisRecord> OpenRecordHead(const StateSealer& sealer, absl::string_view id,
                                           absl::string_view owner, absl::string_view head,
                                           int64_t now_ms);

// The whole. Errors as above. Takes time with its size.
absl::StatusOr<SequenceState> OpenRecord(const StateSealer& sealer, absl::string_view id,
                                         absl::string_view owner, absl::string_view record);

}  // namespace aft::server
