// Tests signals that a program ignores, and what the second signal does to a program that the first
// one has not ended.
#include "client/tool/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "client/lib/cancel_token.h"

namespace aft::client {
namespace {

void SignalTwice() {
  alarm(60);                // ends this process if the second signal does not
  signal(SIGINT, SIG_DFL);  // a test in the background of a shell ignores it
  CancelToken token;
  const Interrupt interrupt(token);
  kill(getpid(), SIGINT);
  token.WaitFor(std::chrono::minutes(1));
  if (!token.cancelled() || interrupt.exit_code() != 130) return;
  kill(getpid(), SIGTERM);
  while (true) pause();
}

void TerminateAfterAnIgnoredSignal() {
  signal(SIGINT, SIG_IGN);
  CancelToken token;
  const Interrupt interrupt(token);
  kill(getpid(), SIGINT);
  kill(getpid(), SIGTERM);
  token.WaitFor(std::chrono::minutes(1));
  _exit(interrupt.exit_code() == 143 ? 0 : 1);
}

TEST(InterruptTest, ASignalThatTheProcessIgnoresHasNoEffect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(TerminateAfterAnIgnoredSignal(), testing::ExitedWithCode(0), "");
}

TEST(InterruptTest, TheSecondSignalEndsTheProcessAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(SignalTwice(), testing::ExitedWithCode(143), "");
}

}  // namespace
}  // namespace aft::client
