// aftctl as a process whose server is gone in the middle of a stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/client/aftctl_fixture.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AftctlResumeTest : public AftctlFixture {
 protected:
  // A generation whose server is lost behind its first token, and never comes back.
  Ended LoseTheServer(const std::string& max_resumes) {
    server_.SetScript(StalledScript({StartedEvent(7, 1), DeltaEvent(0, "abc")}));
    TcpGate gate(server_.port());
    Process aftctl({AFTCTL, "--address", gate.address(), "generate", "--prompt", "hello",
                    "--max-resumes", max_resumes});
    EXPECT_TRUE(aftctl.WaitForOutput("abc"));
    gate.Cut();
    const int code = aftctl.Wait();
    EXPECT_EQ(aftctl.out(), "abc");
    return {code, aftctl.out(), aftctl.err()};
  }
};

TEST_F(AftctlResumeTest, WithoutResumesItEndsWithTheErrorOfTheLostServer) {
  const Ended ended = LoseTheServer("0");
  EXPECT_EQ(ended.code, 7);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("aftctl: "), Not(HasSubstr("resuming"))));
}

TEST_F(AftctlResumeTest, ItSaysThatItResumesAndHowOftenItWill) {
  const Ended ended = LoseTheServer("2");
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[the stream broke, resuming (1 of 2): "),
                               HasSubstr("[the stream broke, resuming (2 of 2) in 0.1 s: "),
                               HasSubstr("aftctl: ")));
}

}  // namespace
}  // namespace aft::client
