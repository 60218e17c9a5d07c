#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/app/signals.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/no_more_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(LifecycleTest, TheEndOfTheGracePeriodEndsRunningStreams) {
  ServerConfig config = TestConfig();
  config.drain.grace = std::chrono::milliseconds(0);
  TestServer server(config);
  server.control().Hold();
  GenerateStream stream(server.inference(), Request("endless", 1'000'000));
  server.control().AllowSteps(1);
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  std::thread drain([&server] { server.server().Drain(); });
  // The test allows one step at a time. Otherwise the model could finish before the server drains.
  do {
    server.control().AllowSteps(1);
  } while (stream.Next());
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::Usage usage;
  ASSERT_TRUE(usage.ParseFromString(stream.TrailingMetadata("aft-usage-bin")));
  EXPECT_EQ(usage.prompt_tokens(), 7);
  EXPECT_EQ(usage.generated_tokens(), stream.tokens.size());
  v1::Timings timings;
  ASSERT_TRUE(timings.ParseFromString(stream.TrailingMetadata("aft-timings-bin")));
  EXPECT_GT(timings.first_token_us(), 0);
  EXPECT_GE(timings.total_us(), timings.first_token_us());
  drain.join();
}

TEST(LifecycleTest, DrainWhileLoadingStopsAfterTheLoad) {
  const FakeModels fakes;
  fakes.loads->Hold();
  TestServer server(TestConfig(), FakeLoader(fakes));
  server.server().RequestDrain();
  EXPECT_EQ(server.server().WaitReady().code(), absl::StatusCode::kCancelled);
  std::thread drain([&server] { server.server().Wait(); });
  fakes.loads->Resume();
  drain.join();
  EXPECT_EQ(server.server().lifecycle(), Lifecycle::kStopped);
}

TEST(LifecycleTest, APortInUseIsNamedAndItsOwnerStillServes) {
  TestServer first(TestConfigWithMetrics());
  ServerConfig config = TestConfig();
  config.listen_address = first.server().address();
  auto second = Server::Create(config, FakeLoader(), {.version = "test"});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->Start().message(),
            "listen_address: cannot listen on " + first.server().address() +
                ": Address already in use; choose another address with --listen_address HOST:PORT");

  config.listen_address = "127.0.0.1:0";
  config.metrics_address = first.server().metrics_address();
  auto third = Server::Create(config, FakeLoader(), {.version = "test"});
  ASSERT_TRUE(third.ok());
  EXPECT_THAT(std::string((*third)->Start().message()), HasSubstr(config.metrics_address));
  ExpectServes(first);
}

// gRPC sends its settings (a frame of type 4) as soon as it has accepted a connection.
TEST(LifecycleTest, AConnectionThatFindsNoFreeFileDescriptorIsAcceptedLater) {
  TestServer server;
  const CapturedLog log;
  auto none = std::make_unique<NoMoreFiles>(/*left=*/1);
  const TcpConnection connection(server.server().address());
  while (log.Lines("server.accept_failed").empty()) std::this_thread::yield();
  none.reset();
  EXPECT_THAT(connection.ReadTo("\4"), EndsWith("\4"));
  ExpectServes(server);
}

TEST(LifecycleTest, BudgetsThatExceedTheMemoryAreRefusedBeforeAnythingOpens) {
  ServerConfig config = TestConfig();
  config.limits.max_memory_bytes = int64_t{1} << 40;
  config.states.max_bytes = int64_t{1} << 50;
  const auto server = Server::Create(config, FakeLoader(), {.version = "test"});
  EXPECT_THAT(server.status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                        AllOf(HasSubstr("1048576.0 MiB limits.max_memory_bytes"),
                                              HasSubstr("1073741824.0 MiB states.max_bytes"))));
}

// The test expects no text, because the process does not wait long for its last log line.
TEST(LifecycleTest, AProcessThatStillRunsAtTheHardLimitIsEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // no other thread can take the signal
  EXPECT_EXIT(
      {
        BlockShutdownSignals();
        HandleShutdownSignals([](int) { return std::chrono::milliseconds(50); }, [] {}, 5);
        kill(getpid(), SIGTERM);
        while (true) pause();
      },
      testing::ExitedWithCode(5), "");
}

TEST(LifecycleTest, ABadConfigIsRefusedBeforeAnythingOpens) {
  ServerConfig config = TestConfig();
  config.models[0].slots = 0;
  const auto server = Server::Create(config, FakeLoader(), {.version = "test"});
  EXPECT_EQ(server.status().message(), "models[0].slots: must be in [1, 65536], got 0");
}

}  // namespace
}  // namespace aft::server
