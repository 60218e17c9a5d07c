#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/config/ip_address.h"

namespace aft::server {

// Returns the name of the client that sent a request. `peer` is written as in gRPC:
// "ipv4:10.0.0.7:4711", "ipv6:%5B::1%5D:4711", "unix:...". If `peer` is one of `proxies`, the
// client is the rightmost address in `forwarded_for` that is no proxy. `forwarded_for` is the
// header x-forwarded-for, such as "203.0.113.9, 10.0.0.1". Reading stops at an entry that is no
// address: it and all entries to its left are ignored.
std::string ClientNameOf(absl::string_view peer, absl::string_view forwarded_for,
                         const std::vector<IpNetwork>& proxies);

// Whether `peer`, in the same form, is one of `proxies`.
bool ComesFromProxy(absl::string_view peer, const std::vector<IpNetwork>& proxies);

}  // namespace aft::server
