#pragma once

#include <grpcpp/support/channel_arguments.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/lib/address.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// What a client needs for TLS, as PEM.
struct ClientTls {
  std::string authorities;  // that sign the server's certificate; empty: the system's
  std::string certificate;  // of this client, where the server wants one; else both are empty
  std::string key;
};

struct ClientOptions {
  // "host:port" or a gRPC target: "unix:/run/aft.sock"; several servers by a name that resolves to
  // them, "dns:///aft:8500", or by number, "ipv4:10.0.0.1:8500,10.0.0.2:8500".
  std::string address = kDefaultAddress;
  // Absent: no TLS.
  std::optional<ClientTls> tls = std::nullopt;
  // Names this client to the server (`authorization: Bearer`). Empty: none. Whoever sees the wire
  // can take it: without TLS only for networks that are trusted.
  std::string token = {};
  // Time for one attempt to connect; gRPC takes at least 100 ms.
  std::chrono::milliseconds connect_timeout{5000};
  // Of every call that sets none of its own; 0: none.
  std::chrono::milliseconds deadline{600'000};
  // How often a refused call is sent, the first time included; 1 to 5, 1: never again.
  int max_attempts = 5;
  // How often a generation or scoring that breaks is gone on with, when nothing comes in between;
  // 0: never.
  int max_resumes = 10;
  // For everything else; these win over what the client sets itself.
  grpc::ChannelArguments channel_args = {};
};

// A generation or scoring that broke, and goes on.
struct Resumed {
  absl::Status cause = {};  // what broke it
  uint32_t tokens = 0;      // or scores, that had come
  // Whether all that comes is still what one server would have given, undisturbed. False where the
  // server that goes on computes otherwise: the text is as good, and another one.
  bool exact = true;
  uint32_t sequence = 0;  // of a generation with several: each goes on by itself
  // Calls that were sent to go on, this one included.
  int tries = 1;
  // From the break until this one was sent, which is pauses and refused calls; from there to its
  // Started, which is the way there and the server's queue.
  std::chrono::milliseconds until_sent{0};
  std::chrono::milliseconds until_started{0};
};

// A generation or scoring that broke, and that is about to be gone on with.
struct Resuming {
  absl::Status cause;                  // what ended the last call
  int attempt = 1;                     // from 1 on, since something came
  int attempts = 0;                    // ClientOptions::max_resumes
  std::chrono::milliseconds pause{0};  // before it
};

struct CallOptions {
  // From the start of the call, connecting included; 0: none. Unset: ClientOptions::deadline.
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;
  // Names the request in the server's log and answers. At most 128 printable ASCII characters;
  // empty: the server draws one.
  std::string request_id = {};
  // W3C Trace Context, "00-<32 hex>-<16 hex>-<2 hex>": the call becomes part of that trace. Empty:
  // the server begins one.
  std::string traceparent = {};
  // Not owned; null: the call cannot be cancelled.
  CancelToken* cancel = nullptr;
  // Of generations and scorings: called, where their events are, before each attempt to go on, and
  // each time that one goes on.
  std::function<void(const Resuming&)> on_resuming = {};
  std::function<void(const Resumed&)> on_resumed = {};
};

}  // namespace aft::client
