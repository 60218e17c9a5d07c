#include "client/lib/call.h"

#include <algorithm>
#include <chrono>

#include "base/status_macros.h"

namespace aft::client {

absl::Status CheckRequestId(absl::string_view id) {
  if (IsPrintable(id) && id.size() <= 128) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the request id must be at most 128 printable ASCII characters without spaces");
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

bool IsCancelled(const CallOptions& options) {
  return options.cancel != nullptr && options.cancel->cancelled();
}

absl::Status Call::Prepare(const ClientOptions& client, const CallOptions& options) {
  AFT_RETURN_IF_ERROR(CheckRequestId(options.request_id));
  if (!options.request_id.empty()) context.AddMetadata("x-request-id", options.request_id);
  if (!client.token.empty()) context.AddMetadata("authorization", "Bearer " + client.token);
  facts.address = client.address;
  facts.deadline = options.deadline.value_or(client.deadline);
  if (facts.deadline.count() > 0) {
    context.set_deadline(std::chrono::system_clock::now() + facts.deadline);
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
