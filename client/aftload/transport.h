#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "client/lib/call_options.h"
#include "client/lib/generate_listener.h"

namespace aft::client {

// Carries the requests of a load to one target, and the answers back. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Does what Client::StartGenerate does. The listener is called on threads of the transport.
  virtual void StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                             const CallOptions& call) = 0;
  // Waits a moment for a connection, if connecting only makes progress during such a wait.
  virtual void KeepConnected() {}
};

// Connects to OpenAI's HTTP API: requests are sent to /v1/completions, and answers are read as
// server-sent events. Each request has a connection to itself, under TLS if `target` says so, which
// is kept for the next request. All of them run on one thread, so that a client with many streams
// leaves the processor to the server. A delta has only text, because events do not count tokens,
// and for this reason no listener may cancel its request after some of them (Next::cancel).
// Finished has the usage, including prompt tokens. Only address, token and tls of `target` are
// used. Returns once there is a first connection. Errors and their details are those of Client;
// INVALID_ARGUMENT if the address is not HOST:PORT.
absl::StatusOr<std::unique_ptr<Transport>> ConnectHttp(const ClientOptions& target);

}  // namespace aft::client
