#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "server/call/call_ids.h"
#include "server/scheduling/time.h"

// What travels around the messages of a call: metadata, deadline, status.
namespace aft::server {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";  // gRPC's clients obey it
inline constexpr char kUsageKey[] = "aft-usage-bin";
inline constexpr char kTimingsKey[] = "aft-timings-bin";

// The trace that the client's `traceparent` names, or a new one when there is no valid one.
TraceContext TakeTrace(const grpc::ServerContextBase& context);

// Fills `ids` in any case. INVALID_ARGUMENT unless the client's `x-request-id`, if there is one, is
// 1 to 128 printable ASCII characters.
absl::Status TakeIds(const grpc::ServerContextBase& context, CallIds& ids);

// Sends them to the client: before the first message of an answer, or with the status of a refusal,
// which has nothing else.
enum class Metadata { kInitial, kTrailing };
void SendTrace(grpc::ServerContextBase& context, const TraceContext& trace, Metadata where);
void SendIds(grpc::ServerContextBase& context, const CallIds& ids, Metadata where);

// The client's deadline on the monotonic clock; TimePoint::max() when it set none.
TimePoint DeadlineOf(const grpc::ServerContextBase& context);

// The same code and message, except that INTERNAL shows the client its request id and nothing else.
grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id = "");

}  // namespace aft::server
