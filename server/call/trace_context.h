#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace aft::server {

// The position of a call in a trace, by W3C Trace Context (https://www.w3.org/TR/trace-context).
// Ids are lower-case hexadecimal digits.
struct TraceContext {
  std::string trace_id;      // 32 digits
  std::string span_id;       // 16 digits; the call's own
  std::string parent_id;     // 16 digits; empty: the trace begins with the call
  std::string flags = "00";  // 2 digits, without reserved flags; "01": the caller records its part

  // Returns the header `traceparent` that names the call's own span.
  std::string Traceparent() const;
};

// Returns trace, parent and flags of a header `traceparent`. Returns nullopt if it is invalid,
// which section 3.2.2 treats like a missing header.
std::optional<TraceContext> ParseTraceparent(absl::string_view text);

}  // namespace aft::server
