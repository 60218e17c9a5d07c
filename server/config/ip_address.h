#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::server {

// An IP address. Version 4 is stored as ::ffff:a.b.c.d.
class IpAddress {
 public:
  // Accepts "10.0.0.7", "2001:db8::1" and "[2001:db8::1]"; the first and the last also with
  // ":port". INVALID_ARGUMENT.
  static absl::StatusOr<IpAddress> Parse(absl::string_view text);

  // The name of the client that the address stands for. In version 4 it is the address itself. In
  // version 6, where a subscriber has 2^64 addresses, it is the network "2001:db8:0:1::/64".
  std::string ClientName() const;

 private:
  friend class IpNetwork;
  bool is_v4() const;

  std::array<uint8_t, 16> bytes_{};
};

// A network such as "10.0.0.0/8", "fd00::/8", or the single address "::1".
class IpNetwork {
 public:
  static absl::StatusOr<IpNetwork> Parse(absl::string_view text);

  bool Contains(const IpAddress& address) const;

 private:
  IpAddress address_;
  int prefix_bits_ = 128;
};

}  // namespace aft::server
