#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace aft::server {

// The head of a request.
struct HttpRequest {
  std::string method;
  std::string path;   // without the query; for a request with a whole URL, the path of that URL
  std::string query;  // the part after the '?'
  std::string peer;   // the address, as gRPC writes it: "ipv4:127.0.0.1:4711"
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::string> certificate_names = {};  // that the client has proved under TLS
  bool at_loopback = false;                         // the server listens at a loopback address

  // The value of the header of that name; "" if there is none, or if there are several.
  absl::string_view Header(absl::string_view name) const {
    const std::string* found = nullptr;
    for (const auto& [key, value] : headers) {
      if (!absl::EqualsIgnoreCase(key, name)) continue;
      if (found != nullptr) return {};
      found = &value;
    }
    return found != nullptr ? absl::string_view(*found) : absl::string_view();
  }
  // The header Host without its port, such as "localhost" or "[::1]"; "" if there is none.
  absl::string_view Host() const {
    const absl::string_view host = Header("Host");
    const size_t bracket = host.find(']');
    return host.substr(0, host.find(':', bracket == absl::string_view::npos ? 0 : bracket));
  }
  // Whether a browser finds that host without asking DNS: it is localhost, an IP address or none. A
  // page cannot make a browser send such a Host through a name of its own (DNS rebinding).
  bool NeedsNoDns() const;
  // The values of all headers of that name, joined by commas: a list may come in several headers
  // (RFC 9110, 5.3).
  std::string Joined(absl::string_view name) const;
  size_t Count(absl::string_view name) const {
    size_t count = 0;
    for (const auto& header : headers) count += absl::EqualsIgnoreCase(header.first, name);
    return count;
  }
};

// A whole answer.
struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body{};
  // These are sent in addition to the headers of every answer. One with the same name replaces it.
  std::map<std::string, std::string> headers{};
};

// Returns the head of the answer. `length`: the header that says where its body ends, with its line
// end, or "".
std::string HeadOf(const HttpPage& page, bool keep_alive, absl::string_view length);

}  // namespace aft::server
