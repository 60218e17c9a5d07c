#include "client/lib/rpc_error.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/lib/address.h"

namespace aft::client {
namespace {

using Milliseconds = std::chrono::milliseconds;

// gRPC's message if it cannot make a connection object from the certificates and keys.
constexpr char kNoSubchannel[] = "empty address list";

bool ContainsAnyOf(absl::string_view text, std::initializer_list<absl::string_view> phrases) {
  return std::any_of(phrases.begin(), phrases.end(),
                     [text](absl::string_view phrase) { return absl::StrContains(text, phrase); });
}

std::optional<absl::string_view> Trailer(const grpc::ClientContext& context, const char* key) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(key);
  if (found == trailers.end()) return std::nullopt;
  return absl::string_view(found->second.data(), found->second.size());
}

template <typename Message>
std::optional<Message> TrailerMessage(const grpc::ClientContext& context, const char* key) {
  const auto bytes = Trailer(context, key);
  Message message;
  if (!bytes || !message.ParseFromArray(bytes->data(), static_cast<int>(bytes->size()))) {
    return std::nullopt;
  }
  return message;
}

ErrorDetails ReadDetails(const grpc::ClientContext& context, const CallFacts& facts) {
  ErrorDetails details;
  details.request_id = RequestId(context);
  details.received_tokens = facts.received_tokens;
  details.usage = TrailerMessage<v1::Usage>(context, "aft-usage-bin");
  details.timings = TrailerMessage<v1::Timings>(context, "aft-timings-bin");
  int64_t retry_ms = 0;
  const auto retry = Trailer(context, "grpc-retry-pushback-ms");
  if (retry && absl::SimpleAtoi(*retry, &retry_ms) && retry_ms >= 0) {
    details.retry_after = std::min(Milliseconds(retry_ms), kLongestRetryAfter);
  }
  details.may_retry = !retry || !absl::StartsWith(*retry, "-");
  return details;
}

// gRPC's message if servers are reachable but their health is not SERVING.
bool IsNotServing(const grpc::Status& status) {
  return status.error_code() == grpc::UNAVAILABLE &&
         absl::StrContains(status.error_message(), "backend unhealthy");
}

// gRPC uses one code for three cases: a server that cannot be reached, a connection that broke, and
// a server that answers UNAVAILABLE. An answer of an AFT server has a request id and, once
// generation has begun, usage in the trailers. An error that gRPC itself made is recognised by its
// message.
ErrorOrigin FindOrigin(const grpc::Status& status, const ErrorDetails& details,
                       const CallFacts& facts) {
  if (facts.cancelled && status.error_code() == grpc::CANCELLED) return ErrorOrigin::kCaller;
  if (status.error_code() != grpc::UNAVAILABLE) return ErrorOrigin::kServer;
  if (facts.started) {
    return details.usage ? ErrorOrigin::kServer : ErrorOrigin::kConnectionLost;
  }
  if (!details.request_id.empty() || IsNotServing(status)) return ErrorOrigin::kServer;
  if (ContainsAnyOf(status.error_message(),
                    {"failed to connect", "DNS resolution", "C-ares", "resolver",
                     "connections to all backends", kNoSubchannel})) {
    return ErrorOrigin::kUnreachable;
  }
  if (ContainsAnyOf(status.error_message(),
                    {"Socket closed", "Connection reset", "Broken pipe", "timed out", "GOAWAY",
                     "keepalive", "recvmsg", "Stream removed", "Transport", "transport"})) {
    return ErrorOrigin::kConnectionLost;
  }
  return ErrorOrigin::kServer;
}

// Extracts the reason from gRPC's "failed to connect to all addresses; last error: UNKNOWN:
// ipv4:..: ..".
std::string WhyUnreachable(const std::string& message, bool tls) {
  if (tls && absl::StrContains(message, kNoSubchannel)) {
    return "gRPC cannot use the certificates or the key; are they PEM, and does the key belong to "
           "the certificate?";
  }
  if (absl::StrContains(message, "Connection refused")) {
    return "connection refused; is the server running?";
  }
  if (ContainsAnyOf(message, {"DNS resolution", "C-ares", "resolver"})) {
    return "the host name does not resolve; check the address";
  }
  // An HTTP port brings the first of these messages without TLS, and the second with TLS.
  if (ContainsAnyOf(message, {"http1.x server", "no application protocol"})) {
    return absl::StrCat("it is an HTTP port; use the address of gRPC, by default ",
                        kDefaultAddress);
  }
  if (!tls && ContainsAnyOf(message, {"Socket closed", "Connection reset"})) {
    return "the server closed the connection; does it expect TLS (--tls of aftctl)?";
  }
  if (absl::StrContains(message, "wrong version number")) {  // OpenSSL's message
    return "the server does not speak TLS; leave out --tls";
  }
  if (absl::StrContains(message, "certificate verify failed")) {
    return "no authority that the client knows has signed the server's certificate, or it has "
           "expired; give the authority's certificate (--ca)";
  }
  if (absl::StrContains(message, "not in peer certificate")) {
    return "the server's certificate is for another host name; use a name that it has";
  }
  if (absl::StrContains(message, "No such file or directory")) {
    return "there is no such socket; is the server running?";
  }
  // Nothing answers at this address, or a program that does not speak gRPC. Which of these messages
  // gRPC then gives depends on its timers.
  if (ContainsAnyOf(message, {"SETTINGS", "http2", "HTTP2", "handshaker", "timed out", "Timeout",
                              "timeout", "Deadline"})) {
    return "no answer in gRPC's protocol; check host, port and whether the server expects TLS";
  }
  return message;
}

std::string Seconds(Milliseconds duration) {
  return absl::StrCat(static_cast<double>(duration.count()) / 1000, " s");
}

bool HasBegun(const CallFacts& facts) { return facts.started || facts.received_tokens > 0; }

std::string After(const CallFacts& facts) {
  return HasBegun(facts) ? absl::StrCat(" after ", TokenCount(facts.received_tokens)) : "";
}

std::string DeadlineSentence(const ErrorDetails& details, const CallFacts& facts) {
  if (facts.deadline.count() <= 0) return "the server says that the deadline has passed";
  const std::string limit = Seconds(facts.deadline);
  if (HasBegun(facts)) {
    return absl::StrCat("the deadline of ", limit, " passed after ",
                        TokenCount(facts.received_tokens), "; allow more time or ask for less");
  }
  // An answer with a request id comes from the server, not from gRPC itself.
  if (!details.request_id.empty()) {
    return absl::StrCat("the deadline of ", limit,
                        " passed before the answer began; allow more time");
  }
  return absl::StrCat("no answer from ", facts.address, " within ", limit);
}

std::string ServerSentence(const grpc::Status& status, const ErrorDetails& details,
                           const CallFacts& facts) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  if (IsNotServing(status)) {
    return absl::StrCat(facts.address, " is not serving: loading or draining; try again later");
  }
  std::string message = status.error_message().empty()
                            ? absl::StrCat("the server gave no reason except ", code)
                            : status.error_message();
  switch (status.error_code()) {
    case grpc::DEADLINE_EXCEEDED:
      return DeadlineSentence(details, facts);
    case grpc::CANCELLED:
      return absl::StrCat("the server cancelled the call", After(facts), ": ", message);
    case grpc::UNAVAILABLE:
    case grpc::RESOURCE_EXHAUSTED: {
      if (!details.may_retry) return message;
      const std::string when = details.retry_after
                                   ? absl::StrCat("in ", Seconds(*details.retry_after))
                                   : std::string("later");
      return absl::StrCat(message, "; try again ", when);
    }
    case grpc::UNIMPLEMENTED:
      return absl::StrCat(message, "; is ", facts.address, " an AFT server of this version?");
    case grpc::INTERNAL:
    case grpc::UNKNOWN:
      return absl::StrCat("the call failed", After(facts), ": ", message);
    default:
      return message;
  }
}

std::string Sentence(const grpc::Status& status, const ErrorDetails& details,
                     const CallFacts& facts) {
  switch (details.origin) {
    case ErrorOrigin::kUnreachable:
      return absl::StrCat("cannot reach ", facts.address, ": ",
                          WhyUnreachable(status.error_message(), facts.tls));
    case ErrorOrigin::kConnectionLost:
      return absl::StrCat("the connection to ", facts.address, " broke", After(facts), ": ",
                          status.error_message());
    case ErrorOrigin::kCaller:
      return absl::StrCat("cancelled", After(facts));
    case ErrorOrigin::kServer:
    case ErrorOrigin::kProtocol:
      return ServerSentence(status, details, facts);
  }
  return status.error_message();
}

}  // namespace

absl::Status RpcError(const grpc::Status& status, const grpc::ClientContext& context,
                      const CallFacts& facts) {
  ErrorDetails details = ReadDetails(context, facts);
  details.origin = FindOrigin(status, details, facts);
  absl::Status error(static_cast<absl::StatusCode>(status.error_code()),
                     Sentence(status, details, facts));
  SetErrorDetails(details, error);
  return error;
}

absl::Status ProtocolError(absl::string_view what, const grpc::ClientContext& context,
                           const CallFacts& facts) {
  ErrorDetails details = ReadDetails(context, facts);
  details.origin = ErrorOrigin::kProtocol;
  absl::Status error = absl::DataLossError(
      absl::StrCat("the answer of ", facts.address, " is broken", After(facts), ": ", what));
  SetErrorDetails(details, error);
  return error;
}

// An answer of the server has trailers: usage if a stream has begun, and the request's id if the
// call was refused.
bool IsOfServer(const grpc::ClientContext& context) {
  return Trailer(context, "aft-usage-bin") || Trailer(context, "x-request-id");
}

std::string RequestId(const grpc::ClientContext& context) {
  for (const auto* metadata :
       {&context.GetServerInitialMetadata(), &context.GetServerTrailingMetadata()}) {
    const auto found = metadata->find("x-request-id");
    if (found != metadata->end()) return {found->second.data(), found->second.size()};
  }
  return "";
}

}  // namespace aft::client
