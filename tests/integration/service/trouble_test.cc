// Things that go wrong while streams run. Each test ends with "and then it serves again".
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::server {
namespace {

// One slot and one place in the queue.
ServerConfig TinyConfig() {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  config.limits.max_queued_requests = 1;
  return config;
}

constexpr uint32_t kUntilCancelled = 1'000'000;

TEST(TroubleTest, AClientThatVanishesFreesItsSlot) {
  TestServer server(TinyConfig());
  const std::string address = server.server().address();
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  client::TcpGate gate(port);
  auto stub = v1::InferenceService::NewStub(TestServer::Connect(gate.address()));
  GenerateStream stream(*stub, Request("endless", kUntilCancelled));
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  gate.Cut();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  ExpectServes(server);
  server.WaitForMetric(RequestsTotal("CANCELLED", "Generate"), 1);
}

TEST(TroubleTest, AClientThatKeepsUpMayReadMoreThanItsBufferHolds) {
  ServerConfig config = TestConfig();
  config.limits.max_stream_buffer_bytes = 256;
  TestServer server(config);
  server.control().Hold();
  const v1::GenerateRequest request = Request("long", 500);
  GenerateStream stream(server.inference(), request);
  for (int i = 0; i < 500; ++i) {
    server.control().AllowSteps(1);
    ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta)) << i;
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.tokens, Expected(request));
}

TEST(TroubleTest, ManyClientsThatComeAndGoLeaveNothingBehind) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_queued_requests = 1000;
  TestServer server(config);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&server, t] {
      std::mt19937 engine(static_cast<unsigned>(t + 1));
      const auto random = [&engine] { return static_cast<uint32_t>(engine()); };
      for (int i = 0; i < 20; ++i) {
        const v1::GenerateRequest request =
            Request(std::string(1 + random() % 100, 'p'), 1 + random() % 60, random());
        GenerateStream stream(server.inference(), request);
        const bool leave = random() % 2 == 0;
        for (unsigned reads = random() % 8; leave && reads > 0 && stream.Next(); --reads) {
        }
        if (leave) stream.context().TryCancel();
        const grpc::Status status = stream.Finish();
        if (!leave) {
          EXPECT_TRUE(status.ok()) << status.error_message();
          EXPECT_EQ(stream.tokens, Expected(request));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.WaitForMetric("aft_slots_used{model=\"fake\"}", 0);
  server.WaitForMetric("aft_requests_running{model=\"fake\"}", 0);
  EXPECT_EQ(server.Metric("aft_requests_waiting{model=\"fake\"}"), 0);
  ExpectServes(server);
}

}  // namespace
}  // namespace aft::server
