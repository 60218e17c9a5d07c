#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {

// Runs aftctl as a process against a server whose answers a test scripts.
class AftctlFixture : public testing::Test {
 protected:
  // `arguments` come after `aftctl --address ADDRESS`; one string is split at its spaces.
  using Arguments = std::vector<std::string>;
  Arguments Command(const Arguments& arguments) const {
    Arguments command = {AFTCTL, "--address", server_.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  Arguments Command(const char* arguments) const {
    return Command(Arguments(absl::StrSplit(arguments, ' ')));
  }

  // Runs aftctl until it ends, and expects the exit code `code`.
  template <typename Any>
  Ended Run(const Any& arguments, const std::string& input = "", int code = 0) const {
    Ended ended = RunToEnd(Command(arguments), input);
    EXPECT_EQ(ended.code, code) << ended.err;
    return ended;
  }

  FakeServer server_;
};

}  // namespace aft::client
