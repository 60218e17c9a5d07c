// Finds the client of a request. Input: lines with the peer, x-forwarded-for and trusted proxies. A
// client cannot pretend to be another one by what it writes into the header.
#include <arpa/inet.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "server/admission/peer_address.h"
#include "server/config/ip_address.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 16, .per_byte = 128};

namespace {

// Returns whether `name` is an IPv4 address as inet_ntop writes it, or a /64 network of IPv6.
bool IsClientName(const std::string& name) {
  in_addr v4 = {};
  in6_addr v6 = {};
  const std::string network(absl::StripSuffix(name, "/64"));
  if (network.size() == name.size()) return inet_pton(AF_INET, name.c_str(), &v4) == 1;
  return inet_pton(AF_INET6, network.c_str(), &v6) == 1 &&
         std::all_of(v6.s6_addr + 8, v6.s6_addr + 16, [](uint8_t byte) { return byte == 0; });
}

void CheckAddress(absl::string_view text) {
  const absl::StatusOr<server::IpAddress> address = server::IpAddress::Parse(text);
  if (!address.ok()) return;
  const std::string name = address->ClientName();
  AFT_CHECK(IsClientName(name));
  // The name is the address or a network that contains it. An address is parsed as a network too.
  const auto network = server::IpNetwork::Parse(name);
  AFT_CHECK(network.ok() && network->Contains(*address));
  const auto again = server::IpAddress::Parse(absl::StripSuffix(name, "/64"));
  AFT_CHECK(again.ok() && again->ClientName() == name);
  // Addresses, brackets and ports are made of these, and a zone may follow.
  constexpr absl::string_view kAllowed = "0123456789abcdefABCDEF:.[]";
  const absl::string_view without_zone = absl::StripAsciiWhitespace(text.substr(0, text.find('%')));
  AFT_CHECK(without_zone.find_first_not_of(kAllowed) == absl::string_view::npos);
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::server;
  const std::vector<absl::string_view> lines =
      absl::StrSplit(fuzz::AsText(data, size), absl::MaxSplits('\n', 2));
  const absl::string_view peer = lines[0];
  const std::string forwarded(lines.size() > 1 ? lines[1] : "");
  std::vector<IpNetwork> proxies;
  if (lines.size() > 2) {
    for (const absl::string_view line : absl::StrSplit(lines[2], '\n')) {
      const absl::StatusOr<IpNetwork> network = IpNetwork::Parse(line);
      if (network.ok()) proxies.push_back(*network);
    }
  }
  const auto is_proxy = [&](const IpAddress& address) {
    return absl::c_any_of(proxies, [&](const IpNetwork& proxy) { return proxy.Contains(address); });
  };
  const std::vector<std::string> hops = absl::StrSplit(forwarded, ',');
  for (const std::string& hop : hops) fuzz::CheckAddress(hop);
  fuzz::CheckAddress(peer);

  const std::string name = ClientNameOf(peer, forwarded, proxies);
  const std::string direct = ClientNameOf(peer, "", proxies);
  const bool known = name != "local" && name != "unknown";
  AFT_CHECK(!known || fuzz::IsClientName(name));
  AFT_CHECK(known == (direct != "local" && direct != "unknown"));
  // Without trusted proxies the header is ignored.
  AFT_CHECK(ClientNameOf(peer, forwarded, {}) == direct);
  // What a client writes stands to the left of what the proxies add. It is ignored if a hop to its
  // right is not a proxy or not an address.
  const bool settled = absl::c_any_of(hops, [&](const std::string& hop) {
    const absl::StatusOr<IpAddress> address = IpAddress::Parse(hop);
    return !address.ok() || !is_proxy(*address);
  });
  if (settled) {
    for (const char* forged : {"192.0.2.77", "2001:db8:77::1", "", "nonsense"}) {
      AFT_CHECK(ClientNameOf(peer, absl::StrCat(forged, ",", forwarded), proxies) == name);
    }
  }
}
