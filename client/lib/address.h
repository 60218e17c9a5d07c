#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// Where a server listens unless its config says otherwise.
inline constexpr char kDefaultAddress[] = "127.0.0.1:8500";

// OK for "host:port" (port 1 to 65535; IPv6 hosts in brackets) and for gRPC target URIs such as
// "unix:/run/aft.sock", "dns:///aft:8500" or, for several servers,
// "ipv4:10.0.0.1:8500,10.0.0.2:8500". gRPC would take port 443 for a missing one, which is never
// meant here. INVALID_ARGUMENT says what is wrong.
absl::Status CheckAddress(absl::string_view address);

// True when the address can only mean this machine: loopback addresses, "localhost" or a Unix
// socket. Other names are not looked up.
bool IsLoopback(absl::string_view address);

}  // namespace aft::client
