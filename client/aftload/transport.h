#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "client/lib/call_options.h"
#include "client/lib/generate_listener.h"

namespace aft::client {

// Brings the requests of a load to one target, and its answers back. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Does what Client::StartGenerate does. The listener is called on threads of the transport.
  virtual void StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                             const CallOptions& call) = 0;
  // Waits a moment for a connection, where one comes about only while somebody waits for it.
  virtual void KeepConnected() {}
};

// Speaks OpenAI's HTTP API: it posts to /v1/completions and reads server-sent events. A request has
// a connection to itself, which is kept for the next one. All of them run on one thread, so that a
// client of many streams leaves the processor to the server. A delta has its text alone, because no
// event counts tokens; Finished has the usage, prompt tokens included. `token` may be empty. It
// returns once there is a first connection. Errors and their details are those of Client;
// INVALID_ARGUMENT says that `address` is not HOST:PORT.
absl::StatusOr<std::unique_ptr<Transport>> ConnectHttp(const std::string& address,
                                                       const std::string& token);

}  // namespace aft::client
