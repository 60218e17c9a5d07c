// Faults while streams run. After most of them a test checks that the server still serves.
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::server {
namespace {

// A server with one slot and one place in the queue.
ServerConfig TinyConfig() {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  config.limits.max_queued_requests = 1;
  return config;
}

TEST(TroubleTest, AClientThatVanishesFreesItsSlot) {
  TestServer server(TinyConfig());
  const std::string address = server.server().address();
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  client::TcpGate gate(port);
  auto stub = v1::InferenceService::NewStub(TestServer::Connect(gate.address()));
  GenerateStream stream(*stub, Request("endless", kEndless));
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

}  // namespace
}  // namespace aft::server
