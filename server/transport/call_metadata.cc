#include "server/transport/call_metadata.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "grpc/support/time.h"
#include "server/call/call_ids.h"

namespace aft::server {

namespace {

absl::string_view Traceparent(const grpc::ServerContextBase& context) {
  const auto [first, end] = context.client_metadata().equal_range(kTraceparentKey);
  if (first == end || std::next(first) != end) return {};  // several headers are as invalid as none
  return {first->second.data(), first->second.size()};
}

// gRPC sends the message as metadata, in which each byte that is not printable ASCII takes three. A
// client that gets more than 8 KiB of metadata reports this instead of the status.
std::string Cut(absl::string_view message) {
  constexpr size_t kMost = 2000;
  if (message.size() <= kMost) return std::string(message);
  size_t size = kMost;  // less if that would leave a part of a character
  while (size > kMost - 3 && ContinuesUtf8(message[size])) --size;
  return absl::StrCat(message.substr(0, size), "... (", message.size() - size, " more bytes)");
}

}  // namespace

absl::Status TakeIds(const grpc::ServerContextBase& context, CallIds& ids) {
  std::optional<absl::string_view> id;
  const auto found = context.client_metadata().find(kRequestIdKey);
  if (found != context.client_metadata().end()) {
    id.emplace(found->second.data(), found->second.size());
  }
  return TakeIds(id, Traceparent(context), ids);
}

void SendTrace(grpc::ServerContextBase& context, const TraceContext& trace, Metadata where) {
  if (where == Metadata::kInitial) {
    context.AddInitialMetadata(kTraceparentKey, trace.Traceparent());
  } else {
    context.AddTrailingMetadata(kTraceparentKey, trace.Traceparent());
  }
}

void SendIds(grpc::ServerContextBase& context, const CallIds& ids, Metadata where) {
  if (where == Metadata::kInitial) {
    context.AddInitialMetadata(kRequestIdKey, ids.request);
  } else {
    context.AddTrailingMetadata(kRequestIdKey, ids.request);
  }
  SendTrace(context, ids.trace, where);
}

TimePoint DeadlineOf(const grpc::ServerContextBase& context) {
  // gRPC's time has 64 bits of seconds, too many for nanoseconds. A deadline in more than a year
  // counts as no deadline.
  constexpr int64_t kYear = int64_t{3600} * 24 * 365;
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC),
                   gpr_now(GPR_CLOCK_MONOTONIC));
  if (left.tv_sec > kYear) return TimePoint::max();
  return std::chrono::steady_clock::now() + std::chrono::seconds(std::max(left.tv_sec, -kYear)) +
         std::chrono::nanoseconds(left.tv_nsec);
}

grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id) {
  if (status.ok()) return grpc::Status::OK;
  if (status.code() == absl::StatusCode::kInternal) {
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        absl::StrCat("internal error; request id ", request_id));
  }
  return ToOperatorStatus(status);
}

grpc::Status ToOperatorStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // gRPC's codes and Abseil's are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Cut(status.message()));
}

}  // namespace aft::server
