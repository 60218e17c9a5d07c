#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/call/trace_context.h"

namespace aft::server {

// From the system's entropy source.
uint64_t RandomUint64();

// 32 hexadecimal digits.
std::string NewId();

// What a call is known by, to its client and in the log.
struct CallIds {
  std::string request;  // the client's `x-request-id`, or a new one
  TraceContext trace;
};

// Fills `ids` in any case: from the request's headers, `x-request-id` (nullopt: there is none) and
// `traceparent` (of which an invalid one is as good as none), or anew. INVALID_ARGUMENT unless the
// id is 1 to 128 printable ASCII characters.
absl::Status TakeIds(std::optional<absl::string_view> request_id, absl::string_view traceparent,
                     CallIds& ids);

}  // namespace aft::server
