#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/lib/call_options.h"
#include "client/lib/rpc_error.h"

namespace aft::client {

// One call, from its options to what is known at its end. Internal to the library.
struct Call {
  // INVALID_ARGUMENT if the request id or traceparent cannot be sent.
  absl::Status Prepare(const ClientOptions& client, const CallOptions& options);

  // Returns the status of a stream that has ended; OK only if it was complete. `broken` says how it
  // broke the protocol, or is empty. REQUIRES: `facts` are up to date.
  absl::Status StreamStatus(const grpc::Status& status, bool finished,
                            absl::string_view broken) const;

  grpc::ClientContext context;
  CallFacts facts;
};

// INVALID_ARGUMENT if it cannot be sent or is too long.
absl::Status CheckRequestId(absl::string_view id);

// INVALID_ARGUMENT if servers would not understand it.
absl::Status CheckTraceparent(absl::string_view traceparent);

bool IsCancelled(const CallOptions& options);

// Returns how long a call with this deadline may take; nullopt if there is no deadline.
std::optional<std::chrono::milliseconds> TimeFor(std::chrono::milliseconds deadline);

// Whether `text` can be sent as metadata. gRPC aborts the process if HTTP/2 cannot carry it.
bool IsPrintable(absl::string_view text);

}  // namespace aft::client
