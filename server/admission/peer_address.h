#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/config/ip_address.h"

namespace aft::server {

// The name of the client that a request comes from. `peer`: as gRPC writes it,
// "ipv4:10.0.0.7:4711", "ipv6:%5B::1%5D:4711", "unix:...". When that is one of `proxies`, the
// client is the rightmost address of `forwarded_for` (of x-forwarded-for: "203.0.113.9, 10.0.0.1")
// that is no proxy; one that cannot be read is not believed, nor what stands left of it.
std::string ClientNameOf(absl::string_view peer, absl::string_view forwarded_for,
                         const std::vector<IpNetwork>& proxies);

// Whether `peer`, written likewise, is one of them.
bool ComesFromProxy(absl::string_view peer, const std::vector<IpNetwork>& proxies);

}  // namespace aft::server
