#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/call/trace_context.h"

namespace aft::server {

// Returns a number from the system's entropy source.
uint64_t RandomUint64();

// 32 hexadecimal digits.
std::string NewId();

// The ids of a call, which its client and the log use.
struct CallIds {
  std::string request;  // the client's `x-request-id`, or a new one
  TraceContext trace;
};

// Makes the position of a call that it is given that of a child with a new span.
void BeginChild(TraceContext& trace);

// Fills `ids`, also when it fails. The ids come from the headers `x-request-id` (nullopt: absent)
// and `traceparent`, or are new ones. An invalid `traceparent` is ignored. INVALID_ARGUMENT unless
// the request id is 1 to 128 printable ASCII characters.
absl::Status TakeIds(std::optional<absl::string_view> request_id, absl::string_view traceparent,
                     CallIds& ids);

}  // namespace aft::server
