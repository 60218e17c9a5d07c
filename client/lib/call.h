#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/lib/call_options.h"
#include "client/lib/rpc_error.h"

namespace aft::client {

// One call, from its options to what is known when it ends. Internal to the library.
struct Call {
  // INVALID_ARGUMENT: the request id or traceparent cannot be sent.
  absl::Status Prepare(const ClientOptions& client, const CallOptions& options);

  // What the end of a stream means; OK only after a whole one. `broken`: what broke the protocol,
  // empty for nothing. REQUIRES: facts are up to date.
  absl::Status StreamStatus(const grpc::Status& status, bool finished,
                            absl::string_view broken) const;

  grpc::ClientContext context;
  CallFacts facts;
};

// INVALID_ARGUMENT: it cannot be sent, or is too long.
absl::Status CheckRequestId(absl::string_view id);

// INVALID_ARGUMENT: servers would not understand it.
absl::Status CheckTraceparent(absl::string_view traceparent);

bool IsCancelled(const CallOptions& options);

// gRPC aborts the process on metadata that HTTP/2 cannot carry.
bool IsPrintable(absl::string_view text);

}  // namespace aft::client
