#include "server/config/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace aft::server {
namespace {

constexpr std::array<uint8_t, 12> kV4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Returns the host without brackets and port, or "" if `text` is anything but a host with or
// without a port.
absl::string_view HostOf(absl::string_view text) {
  absl::string_view host = text;
  absl::string_view port;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t end = host.find(']');
    if (end == absl::string_view::npos) return {};
    port = host.substr(end + 1);
    host = host.substr(0, end);
  } else if (const size_t colon = text.find(':');
             colon != absl::string_view::npos && colon == text.rfind(':')) {
    port = text.substr(colon);
    host = text.substr(0, colon);
  }
  const bool good_port =
      port.empty() || (port.size() > 1 && port.front() == ':' &&
                       port.find_first_not_of("0123456789", 1) == absl::string_view::npos);
  // inet_pton would treat a NUL as the end.
  const bool good_host = host.find('\0') == absl::string_view::npos;
  return good_port && good_host ? host : absl::string_view();
}

}  // namespace

absl::StatusOr<IpAddress> IpAddress::Parse(absl::string_view text) {
  absl::string_view host_text = HostOf(absl::StripAsciiWhitespace(text));
  const std::string host(host_text.substr(0, host_text.find('%')));  // without an IPv6 zone
  IpAddress address;
  uint8_t* const bytes = address.bytes_.data();
  if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) return address;
  std::copy(kV4Prefix.begin(), kV4Prefix.end(), bytes);
  if (inet_pton(AF_INET, host.c_str(), bytes + kV4Prefix.size()) == 1) return address;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no IP address"));
}

bool IpAddress::is_v4() const {
  return std::equal(kV4Prefix.begin(), kV4Prefix.end(), bytes_.begin());
}

std::string IpAddress::ClientName() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4()) return inet_ntop(AF_INET, bytes_.data() + kV4Prefix.size(), text, sizeof(text));
  std::array<uint8_t, 16> network = bytes_;
  std::fill(network.begin() + 8, network.end(), uint8_t{0});
  return absl::StrCat(inet_ntop(AF_INET6, network.data(), text, sizeof(text)), "/64");
}

absl::StatusOr<IpNetwork> IpNetwork::Parse(absl::string_view text) {
  const size_t slash = text.find('/');
  IpNetwork network;
  AFT_ASSIGN_OR_RETURN(network.address_, IpAddress::Parse(text.substr(0, slash)));
  if (slash == absl::string_view::npos) return network;
  const int offset = network.address_.is_v4() ? 96 : 0;
  int bits = 0;
  if (!absl::SimpleAtoi(text.substr(slash + 1), &bits) || bits < 0 || bits > 128 - offset) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no network"));
  }
  network.prefix_bits_ = offset + bits;
  return network;
}

bool IpNetwork::Contains(const IpAddress& address) const {
  for (int bit = 0; bit < prefix_bits_; bit += 8) {
    const auto i = static_cast<size_t>(bit / 8);
    const int unused = std::max(0, bit + 8 - prefix_bits_);
    if ((address.bytes_[i] ^ address_.bytes_[i]) >> unused != 0) return false;
  }
  return true;
}

}  // namespace aft::server
