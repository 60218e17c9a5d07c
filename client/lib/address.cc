#include "client/lib/address.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/lib/error_details.h"

namespace aft::client {
namespace {

bool IsUnixSocket(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

// The endpoints of an address: "dns:///host:port" -> {"host:port"}. Numeric addresses may have
// several endpoints.
std::vector<absl::string_view> Endpoints(absl::string_view address) {
  bool numbers = false;
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (!absl::ConsumePrefix(&address, scheme)) continue;
    if (!absl::ConsumePrefix(&address, "///")) absl::ConsumePrefix(&address, "//");
    numbers = scheme != "dns:";
    break;
  }
  if (!numbers) return {address};
  return absl::StrSplit(address, ',');
}

absl::Status Invalid(absl::string_view address, absl::string_view why) {
  return CallerError(absl::StrCat("bad address \"", address, "\": ", why,
                                  "; expected HOST:PORT, e.g. ", kDefaultAddress));
}

// Returns null if nothing is wrong.
const char* WhatIsWrong(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (colon == absl::string_view::npos) return "the port is missing";
  const absl::string_view host = endpoint.substr(0, colon);
  if (host.empty()) return "the host is missing";
  if (absl::StrContains(host, ":") && (host.front() != '[' || host.back() != ']')) {
    return "an IPv6 host needs brackets, as in [::1]:8500";
  }
  uint32_t port = 0;
  if (!absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return "the port is not a number from 1 to 65535";
  }
  return nullptr;
}

bool IsLoopbackEndpoint(absl::string_view endpoint) {
  const absl::string_view host = endpoint.substr(0, endpoint.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  // "127.x.y.z", but not a name such as "127.example.org".
  return absl::StartsWith(host, "127.") && std::all_of(host.begin(), host.end(), [](char c) {
           return c == '.' || (c >= '0' && c <= '9');
         });
}

}  // namespace

absl::Status CheckAddress(absl::string_view address) {
  if (address.empty()) return Invalid(address, "it is empty");
  const bool printable =
      std::all_of(address.begin(), address.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (!printable) return Invalid(address, "it contains a space or a character that is not ASCII");
  if (IsUnixSocket(address)) return absl::OkStatus();
  const std::vector<absl::string_view> endpoints = Endpoints(address);
  if (absl::StrContains(address, "://") && endpoints.front() == address) {
    return Invalid(address, "this is not a gRPC target");
  }
  for (const absl::string_view endpoint : endpoints) {
    if (const char* const why = WhatIsWrong(endpoint)) return Invalid(address, why);
  }
  return absl::OkStatus();
}

bool IsLoopback(absl::string_view address) {
  if (IsUnixSocket(address)) return true;
  const std::vector<absl::string_view> endpoints = Endpoints(address);
  return std::all_of(endpoints.begin(), endpoints.end(), IsLoopbackEndpoint);
}

}  // namespace aft::client
