#include "server/call/call_ids.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace aft::server {

uint64_t RandomUint64() {
  thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

namespace {

std::string NewSpanId() { return absl::StrFormat("%016x", RandomUint64()); }

}  // namespace

std::string NewId() { return absl::StrFormat("%016x%016x", RandomUint64(), RandomUint64()); }

void BeginChild(TraceContext& trace) {
  trace.parent_id = std::exchange(trace.span_id, NewSpanId());
}

absl::Status TakeIds(std::optional<absl::string_view> request_id, absl::string_view traceparent,
                     CallIds& ids) {
  ids.request = NewId();
  ids.trace = ParseTraceparent(traceparent).value_or(TraceContext());
  if (ids.trace.trace_id.empty()) ids.trace.trace_id = NewId();
  ids.trace.span_id = NewSpanId();
  if (!request_id.has_value()) return absl::OkStatus();
  const bool printable = std::all_of(request_id->begin(), request_id->end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (request_id->empty() || request_id->size() > 128 || !printable) {
    return absl::InvalidArgumentError("x-request-id: must be 1 to 128 printable ASCII characters");
  }
  ids.request = std::string(*request_id);
  return absl::OkStatus();
}

}  // namespace aft::server
