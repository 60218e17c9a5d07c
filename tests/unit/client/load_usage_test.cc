// Tests how aftload checks its command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::HasSubstr;

TEST(AftloadUsageTest, RefusesOtherMachinesAndInvalidValues) {
  const std::vector<std::vector<std::string>> cases = {
      {"--address", "example.org:8500"},
      {"--streams", "0"},
      {"--streams", "10001"},
      {"--max-tokens", "normal:1:2"},
      {"--prompt-bytes", "16777217"},
      {"--prompt-file", "none/at/all"},
      {"--burstiness", "2"},
      {"--goodput", "ttft"},
      {"--goodput", "p99:3"},
      {"--goodput", "tpot:-1"},
      {"--target", "example.org:8500"},
      {"--cancel-share", "0.6", "--slow-share", "0.6"},
      {"--requests", "0"},
      {"--duration", "0"},
      {"--duration", "nan"},
      {"--rate", "-1"},
      {"--rate", "nan"},
      {"--rate", "1,-NaN"},
      {"--max-tokens", "0"},
      {"--prompt", "a", "--prompt-bytes", "3"}};
  for (const auto& arguments : cases) {
    std::vector<std::string> command = {AFTLOAD};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Process aftload(command);
    EXPECT_EQ(aftload.Wait(), 2) << arguments[0] << " " << arguments[1];
    EXPECT_THAT(aftload.err(), testing::StartsWith("aftload: "));
  }
}

TEST(AftloadUsageTest, SaysThatTheServerCannotBeReached) {
  const ClosedPort port;
  Process aftload({AFTLOAD, "--address", port.address()});
  EXPECT_EQ(aftload.Wait(), 3);
  EXPECT_THAT(aftload.err(), HasSubstr("connection refused"));
}

// 0.0.0.0 is no address of this machine, but a connection to it arrives here.
TEST(AftloadUsageTest, ATargetOnAnotherMachineMustBeAllowed) {
  const ClosedPort port;
  const std::string address = absl::StrCat("0.0.0.0:", port.port());
  EXPECT_EQ(RunToEnd({AFTLOAD, "--http", "--address", address}).code, 2);
  EXPECT_EQ(RunToEnd({AFTLOAD, "--http", "--allow-remote", "--address", address}).code, 3);
}

TEST(AftloadUsageTest, ATokenThatCannotBeSentIsWrongUsage) {
  const TempFolder folder;
  std::ofstream(folder.File("token")) << "a b";
  const Ended ended = RunToEnd({AFTLOAD, "--token-file", folder.File("token")});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("the token must be"));
}

}  // namespace
}  // namespace aft::client
