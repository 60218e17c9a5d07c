#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "server/call/call_ids.h"
#include "server/scheduling/time.h"

// The metadata, deadline and status of a gRPC call.
namespace aft::server {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";  // gRPC clients obey it
// The value for calls that need no engine: budgets have no queue from which to compute a better
// time.
inline constexpr char kRetryAfterMs[] = "1000";
inline constexpr char kNeverRetry[] = "-1";
inline constexpr char kUsageKey[] = "aft-usage-bin";
inline constexpr char kTimingsKey[] = "aft-timings-bin";

// Fills `ids`, also when it fails. INVALID_ARGUMENT if the client's `x-request-id` is not 1 to 128
// printable ASCII characters.
absl::Status TakeIds(const grpc::ServerContextBase& context, CallIds& ids);

// Sends them to the client: before the first message of an answer, or with the status of a refusal,
// which has no messages.
enum class Metadata { kInitial, kTrailing };
void SendTrace(grpc::ServerContextBase& context, const TraceContext& trace, Metadata where);
void SendIds(grpc::ServerContextBase& context, const CallIds& ids, Metadata where);

// The client's deadline on the monotonic clock; TimePoint::max() if the client set none.
TimePoint DeadlineOf(const grpc::ServerContextBase& context);

// Converts code and message; a message of more than 2,000 bytes is cut. For INTERNAL, the client
// sees only its request id.
grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id = "");
// Does the same for a client that may read the message of INTERNAL, too.
grpc::Status ToOperatorStatus(const absl::Status& status);

}  // namespace aft::server
