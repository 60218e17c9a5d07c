#include "server/admission/peer_address.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aft::server {
namespace {

bool IsProxy(const IpAddress& address, const std::vector<IpNetwork>& proxies) {
  return std::any_of(proxies.begin(), proxies.end(),
                     [&](const IpNetwork& proxy) { return proxy.Contains(address); });
}

}  // namespace

std::string ClientNameOf(absl::string_view peer, absl::string_view forwarded_for,
                         const std::vector<IpNetwork>& proxies) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) {
    return "local";  // a Unix socket, or inside this process
  }
  absl::StatusOr<IpAddress> client =
      IpAddress::Parse(absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}}));
  if (!client.ok()) return "unknown";
  std::vector<absl::string_view> hops = absl::StrSplit(forwarded_for, ',');
  for (; IsProxy(*client, proxies) && !hops.empty(); hops.pop_back()) {
    const absl::StatusOr<IpAddress> hop = IpAddress::Parse(hops.back());
    if (!hop.ok()) break;
    client = hop;
  }
  return client->ClientName();
}

}  // namespace aft::server
