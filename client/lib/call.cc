#include "client/lib/call.h"

#include <algorithm>
#include <chrono>

#include "base/status_macros.h"
#include "client/lib/error_details.h"

namespace aft::client {

absl::Status CheckRequestId(absl::string_view id) {
  if (IsPrintable(id) && id.size() <= 128) return absl::OkStatus();
  return CallerError(
      "the request id must be at most 128 printable ASCII characters without spaces");
}

absl::Status CheckTraceparent(absl::string_view traceparent) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const auto fits = [&](size_t at, size_t digits) {
    const absl::string_view part = traceparent.substr(at, digits);
    return std::all_of(part.begin(), part.end(), is_digit);
  };
  if (traceparent.empty()) return absl::OkStatus();
  if (traceparent.size() == 55 && traceparent[2] == '-' && traceparent[35] == '-' &&
      traceparent[52] == '-' && fits(0, 2) && fits(3, 32) && fits(36, 16) && fits(53, 2)) {
    return absl::OkStatus();
  }
  return CallerError(
      "the traceparent must be 00-<32>-<16>-<2 lower-case hexadecimal digits> (W3C Trace Context)");
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

bool IsCancelled(const CallOptions& options) {
  return options.cancel != nullptr && options.cancel->cancelled();
}

std::optional<std::chrono::milliseconds> TimeFor(std::chrono::milliseconds deadline) {
  // A longer time might not fit into the clocks.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  if (deadline.count() <= 0) return std::nullopt;
  return std::min(deadline, kLongest);
}

absl::Status Call::Prepare(const ClientOptions& client, const CallOptions& options) {
  AFT_RETURN_IF_ERROR(CheckRequestId(options.request_id));
  AFT_RETURN_IF_ERROR(CheckTraceparent(options.traceparent));
  if (!options.traceparent.empty()) context.AddMetadata("traceparent", options.traceparent);
  if (!options.request_id.empty()) context.AddMetadata("x-request-id", options.request_id);
  if (!client.token.empty()) context.AddMetadata("authorization", "Bearer " + client.token);
  facts.address = client.address;
  facts.tls = client.tls.has_value();
  facts.deadline = options.deadline.value_or(client.deadline);
  if (const auto time = TimeFor(facts.deadline)) {
    context.set_deadline(std::chrono::system_clock::now() + *time);
  }
  return absl::OkStatus();
}

absl::Status Call::StreamStatus(const grpc::Status& status, bool finished,
                                absl::string_view broken) const {
  if (!broken.empty()) return ProtocolError(broken, context, facts);
  if (!status.ok()) return RpcError(status, context, facts);
  if (finished) return absl::OkStatus();
  if (facts.cancelled) return RpcError({grpc::CANCELLED, ""}, context, facts);
  return ProtocolError("the stream ended without Finished", context, facts);
}

}  // namespace aft::client
