#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Where a failed call failed.
enum class ErrorOrigin {
  kServer = 0,          // the server replied with this status
  kUnreachable = 1,     // the call never reached a server
  kConnectionLost = 2,  // the connection broke while the server was answering
  kCaller = 3,          // refused or cancelled by this client
  kProtocol = 4,        // the answer breaks the protocol: lost tokens, missing Finished
};

// The facts about a failed call in addition to code and message. Payloads of the absl::Status hold
// them.
struct ErrorDetails {
  ErrorOrigin origin = ErrorOrigin::kServer;
  std::string request_id = {};   // the call's id; empty if the server never replied
  uint32_t received_tokens = 0;  // tokens that reached the callback before the failure
  // The server's own counts, if it sent them.
  std::optional<v1::Usage> usage = std::nullopt;
  std::optional<v1::Timings> timings = std::nullopt;
  std::optional<std::chrono::milliseconds> retry_after = std::nullopt;
  bool may_retry = true;  // false: the server asks not to send the call again
};

// A server's `retry_after` above this counts as this, so that it can be added to any time.
inline constexpr std::chrono::milliseconds kLongestRetryAfter = std::chrono::hours(24);

// `status` must not be OK: an OK absl::Status carries no payloads.
void SetErrorDetails(const ErrorDetails& details, absl::Status& status);

// INVALID_ARGUMENT, for what this client refuses before it asks a server.
absl::Status CallerError(absl::string_view message);

// The details of a status that Client returned; defaults for any other status.
ErrorDetails GetErrorDetails(const absl::Status& status);

// Formats a number of tokens for messages: "1 token", "12 tokens".
std::string TokenCount(uint64_t tokens);

}  // namespace aft::client
