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

// The facts about a call that the client knows when it ends.
struct CallFacts {
  absl::string_view address;
  bool tls = true;                        // the connection uses TLS
  std::chrono::milliseconds deadline{0};  // 0: none
  bool cancelled = false;                 // by the caller's token
  bool started = false;                   // its Started has arrived
  uint32_t received_tokens = 0;           // of the stream, in all its calls
};

// Converts the failure of a call to an absl::Status with the same code and with ErrorDetails. The
// message is a sentence that says what happened and what to do. `context` is that of the finished
// call.
absl::Status RpcError(const grpc::Status& status, const grpc::ClientContext& context,
                      const CallFacts& facts);

// DATA_LOSS with ErrorDetails: the answer breaks the protocol.
absl::Status ProtocolError(absl::string_view what, const grpc::ClientContext& context,
                           const CallFacts& facts);

// Whether the server itself ended the call. False if gRPC or a proxy made the status.
bool IsOfServer(const grpc::ClientContext& context);

// The `x-request-id` of an answer, from the initial metadata, or from the trailers of a refusal; ""
// if there is none. REQUIRES: the call has finished.
std::string RequestId(const grpc::ClientContext& context);

}  // namespace aft::client
