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

// The certificates and key of a client for TLS, in PEM.
struct ClientTls {
  std::string authorities;  // they sign the server's certificate; empty: the system's
  std::string certificate;  // the client's own, if the server wants one; otherwise empty
  std::string key;          // the private key of `certificate`
};

struct ClientOptions {
  // "host:port" or a gRPC target such as "unix:/run/aft.sock". Several servers are given by a name
  // that resolves to them, "dns:///aft:8500", or by numbers, "ipv4:10.0.0.1:8500,10.0.0.2:8500".
  std::string address = kDefaultAddress;
  // Unset: no TLS.
  std::optional<ClientTls> tls = std::nullopt;
  // Identifies this client to the server (`authorization: Bearer`). Empty: no token. Without TLS,
  // everyone on the network path can read it, so the network must be trusted.
  std::string token = {};
  // Time for one attempt to connect; gRPC uses at least 100 ms.
  std::chrono::milliseconds connect_timeout{5000};
  // Applies to every call without a deadline of its own; 0: no deadline.
  std::chrono::milliseconds deadline{600'000};
  // How often a refused call is sent, the first time included: 1 to 5; 1: never again.
  int max_attempts = 5;
  // How often in a row, without new tokens in between, to resume a generation or scoring that
  // breaks; 0: never.
  int max_resumes = 10;
  // All other options. They win over what the client sets itself.
  grpc::ChannelArguments channel_args = {};
};

// A generation or scoring that broke and was resumed.
struct Resumed {
  absl::Status cause = {};  // why it broke
  uint32_t tokens = 0;      // or scores, that had arrived
  // Whether the whole answer is still what one server would have given without a break. False if
  // the new server computes differently; its text is as good, but may be another one.
  bool exact = true;
  uint32_t sequence = 0;  // of several sequences, each is resumed by itself
  // Number of calls that were sent to resume it, including this one.
  int tries = 1;
  // The time from the break until this call was sent (pauses and refused calls), and from there
  // until its Started (the network and the server's queue).
  std::chrono::milliseconds until_sent{0};
  std::chrono::milliseconds until_started{0};
};

// A generation or scoring that broke and is about to be resumed.
struct Resuming {
  absl::Status cause;                  // what ended the last call
  int attempt = 1;                     // from 1, counted since something arrived
  int attempts = 0;                    // ClientOptions::max_resumes
  std::chrono::milliseconds pause{0};  // before this attempt
};

struct CallOptions {
  // It counts from the call's start, including connecting. 0: none; unset: ClientOptions::deadline.
  // More than a year counts as a year.
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;
  // The id of the request in the server's log and answers. At most 128 printable ASCII characters;
  // empty: the server chooses one.
  std::string request_id = {};
  // W3C Trace Context, "00-<32 hex>-<16 hex>-<2 hex>": makes the call a part of that trace. Empty:
  // the server begins a trace.
  std::string traceparent = {};
  // The token is not owned. Without one the call cannot be cancelled.
  CancelToken* cancel = nullptr;
  // Only generations and scorings call these, on the thread of the events: before each attempt to
  // resume, and each time that a stream was resumed.
  std::function<void(const Resuming&)> on_resuming = {};
  std::function<void(const Resumed&)> on_resumed = {};
};

}  // namespace aft::client
