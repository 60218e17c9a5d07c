#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::server {

// An IP address; version 4 is kept as ::ffff:a.b.c.d.
class IpAddress {
 public:
  // "10.0.0.7", "2001:db8::1", "[2001:db8::1]", either of these with ":port". INVALID_ARGUMENT.
  static absl::StatusOr<IpAddress> Parse(absl::string_view text);

  // The client that an address stands for: itself in version 4; in version 6, where a subscriber
  // has 2^64 of them, its network "2001:db8:0:1::/64".
  std::string ClientName() const;

 private:
  friend class IpNetwork;
  bool is_v4() const;

  std::array<uint8_t, 16> bytes_{};
};

// "10.0.0.0/8", "::1", "fd00::/8".
class IpNetwork {
 public:
  static absl::StatusOr<IpNetwork> Parse(absl::string_view text);

  bool Contains(const IpAddress& address) const;

 private:
  IpAddress address_;
  int prefix_bits_ = 128;
};

}  // namespace aft::server
