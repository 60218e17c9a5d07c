#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {

// Runs aftload as a process against a server whose answers a test scripts.
class AftloadTest : public testing::Test {
 protected:
  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {AFTLOAD, "--address", server_.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  nlohmann::json RunJson(std::vector<std::string> arguments, int exit_code) {
    arguments.push_back("--json");
    const Ended ended = RunToEnd(Command(arguments));
    EXPECT_EQ(ended.code, exit_code) << ended.err;
    return nlohmann::json::parse(ended.out);
  }

  FakeServer server_;
};

}  // namespace aft::client
