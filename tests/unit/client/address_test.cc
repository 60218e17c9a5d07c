#include "client/lib/address.h"

#include <gtest/gtest.h>

namespace aft::client {
namespace {

TEST(AddressTest, AcceptsHostAndPortAndGrpcTargets) {
  for (const char* address :
       {"127.0.0.1:8500", "localhost:1", "aft.example:65535", "[::1]:8500", "unix:/run/aft.sock",
        "unix-abstract:aft", "dns:///aft:8500", "dns:aft:8500", "ipv4:10.0.0.1:80", "ipv6:[::1]:80",
        "ipv4:10.0.0.1:80,10.0.0.2:81", "ipv6:[::1]:80,[::2]:80"}) {
    EXPECT_TRUE(CheckAddress(address).ok()) << CheckAddress(address);
  }
}

TEST(AddressTest, RefusesInvalidAddresses) {
  for (const char* address :
       {"", "localhost", ":8500", "localhost:", "localhost:0", "localhost:65536", "localhost:http",
        "::1:8500", "local host:8500", "http://localhost:8500", "dns:///aft", "h\xC3\xA4:8500",
        "ipv4:10.0.0.1:80,10.0.0.2", "ipv4:,10.0.0.1:80", "10.0.0.1:80,10.0.0.2:80"}) {
    const absl::Status status = CheckAddress(address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST(AddressTest, RecognisesTheAddressesOfThisMachine) {
  for (const char* address :
       {"127.0.0.1:8500", "127.90.8.1:8500", "localhost:8500", "[::1]:8500", "unix:/run/aft.sock",
        "dns:///localhost:8500", "ipv4:127.0.0.1:8500,127.0.0.2:8500"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"10.0.0.1:8500", "127.example.org:8500", "localhost.example:8500", "aft:8500",
        "0.0.0.0:8500", "[::2]:8500", "ipv4:127.0.0.1:8500,10.0.0.1:8500"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace aft::client
