#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "server/scheduling/time.h"

// What travels around the messages of a call: metadata, deadline, status.
namespace aft::server {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";  // gRPC's clients obey it
inline constexpr char kUsageKey[] = "aft-usage-bin";
inline constexpr char kTimingsKey[] = "aft-timings-bin";

// From the system's entropy source.
uint64_t RandomUint64();

// 32 hexadecimal digits.
std::string NewRequestId();

// The client's `x-request-id`, or a new one when there is none. INVALID_ARGUMENT unless it is 1 to
// 128 printable ASCII characters.
absl::StatusOr<std::string> TakeRequestId(const grpc::ServerContextBase& context);

inline constexpr int kMaxModelNameBytes = 128;
inline constexpr int kMaxServiceNameBytes = 256;

// INVALID_ARGUMENT, naming the field, when a name that a client asks for is longer than any that is
// served. To be called before it is looked up, logged or echoed.
absl::Status CheckLength(absl::string_view field, size_t bytes, size_t most);

// The client's deadline on the monotonic clock; TimePoint::max() when it set none.
TimePoint DeadlineOf(const grpc::ServerContextBase& context);

// Whether a client that cancelled at `cancelled_at` did so because its deadline had come. It does
// so a moment before the server's own clock gets there: the deadline came rounded up (by 1 % or a
// millisecond) and after the way here.
bool EndedByDeadline(TimePoint cancelled_at, TimePoint arrival, TimePoint deadline);

// The same code and message, except that INTERNAL shows the client its request id and nothing else.
grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id = "");

}  // namespace aft::server
