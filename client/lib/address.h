#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// The address on which a server listens by default.
inline constexpr char kDefaultAddress[] = "127.0.0.1:8500";

// OK for "host:port" (port 1 to 65535; IPv6 hosts in brackets) and for gRPC target URIs such as
// "unix:/run/aft.sock", "dns:///aft:8500" or, for several servers,
// "ipv4:10.0.0.1:8500,10.0.0.2:8500". The port must be given, because gRPC's default, 443, is never
// the right one. INVALID_ARGUMENT says what is wrong.
absl::Status CheckAddress(absl::string_view address);

// True when the address can only mean this machine: loopback addresses, "localhost" or a Unix
// socket. Other names are not looked up.
bool IsLoopback(absl::string_view address);

}  // namespace aft::client
