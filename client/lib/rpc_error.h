#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/lib/error_details.h"

namespace aft::client {

// What the client knows about a call when it ends.
struct CallFacts {
  absl::string_view address;
  bool tls = true;                        // the connection speaks TLS
  std::chrono::milliseconds deadline{0};  // 0: none
  bool cancelled = false;                 // by the caller's token
  bool started = false;                   // its Started has arrived
  uint32_t received_tokens = 0;           // of the stream, over all its calls
};

// Turns the failure of a call into an absl::Status of the same code whose message is a sentence
// that says what happened and what to do, with ErrorDetails. `context` is the finished call's.
absl::Status RpcError(const grpc::Status& status, const grpc::ClientContext& context,
                      const CallFacts& facts);

// The answer breaks the protocol: DATA_LOSS with ErrorDetails.
absl::Status ProtocolError(absl::string_view what, const grpc::ClientContext& context,
                           const CallFacts& facts);

// Whether the server that ended the call said so itself. False: what lies between made it up.
bool IsOfServer(const grpc::ClientContext& context);

// The server asks that the call be not sent again (a negative `grpc-retry-pushback-ms`).
bool ForbidsRetry(const grpc::ClientContext& context);

// `x-request-id` of an answer, in the initial metadata, or in the trailers of a refusal; empty when
// there was none. REQUIRES: the call has finished.
std::string RequestId(const grpc::ClientContext& context);

}  // namespace aft::client
