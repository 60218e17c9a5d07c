#include "server/admission/peer_address.h"

#include <algorithm>

#include "absl/status/status.h"
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

// The address of the peer "ipv4:..." or "ipv6:..."; NOT_FOUND for all other peers.
absl::StatusOr<IpAddress> AddressOf(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) {
    return absl::NotFoundError(peer);  // a Unix socket, or inside this process
  }
  return IpAddress::Parse(absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}}));
}

}  // namespace

bool ComesFromProxy(absl::string_view peer, const std::vector<IpNetwork>& proxies) {
  const absl::StatusOr<IpAddress> address = AddressOf(peer);
  return address.ok() && IsProxy(*address, proxies);
}

std::string ClientNameOf(absl::string_view peer, absl::string_view forwarded_for,
                         const std::vector<IpNetwork>& proxies) {
  absl::StatusOr<IpAddress> client = AddressOf(peer);
  if (!client.ok()) return absl::IsNotFound(client.status()) ? "local" : "unknown";
  std::vector<absl::string_view> hops = absl::StrSplit(forwarded_for, ',');
  for (; IsProxy(*client, proxies) && !hops.empty(); hops.pop_back()) {
    const absl::StatusOr<IpAddress> hop = IpAddress::Parse(hops.back());
    if (!hop.ok()) break;
    client = hop;
  }
  return client->ClientName();
}

}  // namespace aft::server
