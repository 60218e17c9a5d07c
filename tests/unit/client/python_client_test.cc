// Runs client/python/examples/generate.py against the scripted server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/proto_text.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

// Returns a Python that has gRPC, or "" if there is none. Debian's own Python is tried too, because
// a newer one that comes first in PATH does not see Debian's packages.
std::string LookForPython() {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (Process({python, "-c", "import grpc, google.protobuf"}).Wait() == 0) return python;
  }
  return "";
}

const std::string& FindPython() {
  static const std::string& python = *new std::string(LookForPython());
  return python;
}

class PythonClientTest : public testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << "no Python with gRPC: install python3-grpcio";
  }

  std::vector<std::string> Command(const std::string& text) const {
    return {python_, "client/python/examples/generate.py", server_.address(), text};
  }

  const std::string python_ = FindPython();
  // A proxy of the environment cannot reach this machine's loopback.
  const std::vector<std::string> environment_ = {
      "PYTHONPATH=" PYTHON_STUBS, "PYTHONDONTWRITEBYTECODE=1", "no_grpc_proxy=127.0.0.1"};
  FakeServer server_;
};

TEST_F(PythonClientTest, StreamsACompletion) {
  server_.SetScript(TextScript({"universally ", "acknowledged"}));
  Process python(Command("It is a truth"), environment_);
  EXPECT_EQ(python.Wait(), 0) << python.err();
  EXPECT_EQ(python.out(), "universally acknowledged\n");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), "It is a truth");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().stop().max_tokens(), 64u);
}

TEST_F(PythonClientTest, SendsSamplingOptionsByName) {
  server_.SetScript(TextScript({"a"}));
  std::vector<std::string> command = Command("It is a truth");
  for (const char* option : {"temperature=0.5", "top_k=40", "repetition_penalty=1.5",
                             "presence_penalty=-1", "seed=18446744073709551615"}) {
    command.push_back(option);
  }
  Process python(command, environment_);
  EXPECT_EQ(python.Wait(), 0) << python.err();
  ExpectText(server_.last<v1::GenerateRequest>().sampling(),
             "temperature: 0.5 top_k: 40 repetition_penalty: 1.5 presence_penalty: -1 "
             "seed: 18446744073709551615");
}

TEST_F(PythonClientTest, PrintsTextAsItComes) {
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "universally")}));
  Process python(Command("It is a truth"), environment_);
  EXPECT_TRUE(python.WaitForOutput("universally")) << python.err();
}

TEST_F(PythonClientTest, ShowsTheServersError) {
  server_.SetScript(
      FailedScript(grpc::Status(grpc::INVALID_ARGUMENT, "prompt: must not be empty")));
  Process python(Command(""), environment_);
  EXPECT_NE(python.Wait(), 0);
  EXPECT_THAT(python.err(), testing::HasSubstr("prompt: must not be empty"));
}

}  // namespace
}  // namespace aft::client
