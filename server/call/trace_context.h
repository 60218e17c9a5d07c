#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace aft::server {

// Where a call stands in a trace, by W3C Trace Context (https://www.w3.org/TR/trace-context). Ids
// are lower-case hexadecimal digits.
struct TraceContext {
  std::string trace_id;      // 32
  std::string span_id;       // 16; the call's own
  std::string parent_id;     // 16; empty: the trace begins with the call
  std::string flags = "00";  // 2; "01": the caller records its part

  // The header `traceparent` that names the call's own span.
  std::string Traceparent() const;
};

// Trace, parent and flags of a header `traceparent`; nothing when it is not valid, which is as good
// as none (section 3.2.2).
std::optional<TraceContext> ParseTraceparent(absl::string_view text);

}  // namespace aft::server
