// How a server drains: what its clients see, and how they reach another server.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/observability/log.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/no_more_threads.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A server with one slot and a drain grace of an hour, in which every stream can end.
ServerConfig PatientConfig() {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  config.drain.grace = hours(1);
  return config;
}

std::chrono::system_clock::time_point InAnHour() {
  return std::chrono::system_clock::now() + hours(1);
}

TEST(DrainTest, ConnectionsGetAGoawayAndTheirStreamsContinue) {
  TestServer server(PatientConfig());
  const auto channel = TestServer::Connect(server.server().address());
  const auto stub = v1::InferenceService::NewStub(channel);
  server.control().Hold();
  const v1::GenerateRequest request = Request("running", 10);
  GenerateStream running(*stub, request);
  server.control().AllowSteps(1);
  ASSERT_TRUE(running.ReadUntil(v1::GenerateResponse::kDelta));
  std::thread drain([&server] { EXPECT_TRUE(server.server().Drain()); });
  ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, InAnHour()));  // GOAWAY received
  for (const auto& other : {channel, TestServer::Connect(server.server().address())}) {
    const auto late = v1::InferenceService::NewStub(other);
    EXPECT_EQ(GenerateStream(*late, Request("late", 1)).Finish().error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  server.control().Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_EQ(running.tokens, Expected(request));
  drain.join();
}

TEST(DrainTest, NeedsNoNewThread) {
  TestServer server(PatientConfig());
  const auto channel = TestServer::Connect(server.server().address());
  const auto stub = v1::InferenceService::NewStub(channel);
  const v1::GenerateRequest request = Request("running", 10);
  GenerateStream running(*stub, request);
  EXPECT_TRUE(running.Finish().ok());
  const NoMoreThreads no_more_threads;
  EXPECT_TRUE(server.server().Drain());
  EXPECT_EQ(GenerateStream(*stub, request).Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Every round lets one more thread start, until there are enough.
TEST(DrainTest, AServerThatGetsTooFewThreadsToStartEndsAloneWithAnError) {
  log::Text("");  // starts the thread of the log
  ServerConfig config = PatientConfig();
  config.http_address = "127.0.0.1:0";
  const auto start = [&config]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(const auto server,
                         Server::Create(config, FakeLoader(), {.version = "test"}));
    return server->Start();
  };
  absl::Status status = absl::UnknownError("not started");
  for (int left = 0; !status.ok(); ++left) {
    const NoMoreThreads none(left);
    status = Catching(start);
    EXPECT_THAT(status.ToString(),
                testing::AnyOf("OK", testing::HasSubstr("cannot start a thread: ")));
    ASSERT_LT(left, 100);
  }
}

TEST(DrainTest, AReaderMayBeSlowForAsLongAsTheGraceLasts) {
  ServerConfig config = PatientConfig();
  config.limits.write_stall = hours(1);
  TestServer server(config);
  const auto stub = server.StubWithASmallWindow();
  v1::GenerateRequest request = Request("long", 1000);
  request.mutable_output()->set_top_logprobs(20);
  GenerateStream stream(*stub, request);
  ASSERT_TRUE(stream.Next());
  server.WaitForMetric("aft_request_finished_total{model=\"fake\",reason=\"length\"}", 1);
  std::thread drain([&server] { EXPECT_TRUE(server.server().Drain()); });
  server.WaitForMetric("aft_draining", 1);
  std::this_thread::sleep_for(milliseconds(2'500));  // longer than kFlushTime
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.tokens, Expected(request));
  drain.join();
}

TEST(DrainTest, AReaderThatStopsDelaysTheDrainNoLongerThanTheGrace) {
  const CapturedLog log;
  ServerConfig config = PatientConfig();
  config.drain.grace = milliseconds(10);
  config.limits.write_stall = hours(1);
  TestServer server(config);
  const auto stub = server.StubWithASmallWindow();
  v1::GenerateRequest request = Request("long", 1000);
  request.mutable_output()->set_top_logprobs(20);
  GenerateStream stream(*stub, request);
  ASSERT_TRUE(stream.Next());
  server.WaitForMetric("aft_request_finished_total{model=\"fake\",reason=\"length\"}", 1);
  EXPECT_TRUE(server.server().Drain());
  const std::vector<LogLine> lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["code"], "UNAVAILABLE");
}

// The request has passed the check for a drain with its head.
TEST(DrainTest, AnHttpRequestWhoseBodyArrivesDuringTheDrainGetsAnAnswer) {
  ServerConfig config = PatientConfig();
  config.http_address = "127.0.0.1:0";
  TestServer server(config);
  server.control().Hold();
  GenerateStream running(server.inference(), Request("running", 5));
  server.control().WaitUntilBlocked();
  const TcpConnection sends(server.server().http_address());
  const std::string body = R"({"model":"fake","prompt":"late"})";
  sends.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(sends.ReadTo("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  const TcpConnection idle(server.server().http_address());
  idle.Send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(idle.ReadTo("}\n"), testing::StartsWith("HTTP/1.1 200 "));
  std::thread drain([&server] { EXPECT_TRUE(server.server().Drain()); });
  EXPECT_EQ(idle.ReadAll(), "");
  sends.Send(body);
  EXPECT_THAT(sends.ReadAll(), testing::AllOf(testing::StartsWith("HTTP/1.1 503 "),
                                              testing::HasSubstr("Retry-After: 1\r\n")));
  server.control().Resume();
  EXPECT_TRUE(running.Finish().ok());
  drain.join();
}

// These connections would last as long as the grace, an hour: one that sends nothing, an HTTP/2
// connection that ignores the GOAWAY, and a stream of reflection.
TEST(DrainTest, IdleConnectionsAndReflectionDoNotDelayTheDrain) {
  using grpc::reflection::v1::ServerReflection;
  TestServer server(PatientConfig());
  const TcpConnection silent(server.server().address());
  const TcpConnection idle(server.server().address());
  const std::string no_settings("\0\0\0\4\0\0\0\0\0", 9);
  idle.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_settings);
  // Bytes that the server has not read would make the kernel reset the connection at its end.
  const std::string settings_read("\0\0\0\4\1\0\0\0\0", 9);
  EXPECT_THAT(idle.ReadTo(settings_read), testing::EndsWith(settings_read));
  grpc::ClientContext context;
  const auto stub = ServerReflection::NewStub(TestServer::Connect(server.server().address()));
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  grpc::reflection::v1::ServerReflectionResponse response;
  request.set_list_services("");
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
  EXPECT_TRUE(server.server().Drain());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_NE(idle.ReadAll(), "");  // both connections have been closed
  silent.ReadAll();
}

TEST(DrainTest, AnOldConnectionGetsAGoawayToo) {
  ServerConfig config = PatientConfig();
  config.connections.max_age = milliseconds(100);
  TestServer server(config);
  const v1::GenerateRequest request = Request("old", 10);
  while (true) {  // on a slow machine a connection may be too old before a stream begins
    const auto channel = TestServer::Connect(server.server().address());
    const auto stub = v1::InferenceService::NewStub(channel);
    server.control().Hold();
    server.control().AllowSteps(1);
    GenerateStream stream(*stub, request);
    if (!stream.ReadUntil(v1::GenerateResponse::kDelta)) continue;
    while (channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) {
      ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, InAnHour()));
    }
    server.control().Resume();
    EXPECT_TRUE(stream.Finish().ok());
    EXPECT_EQ(stream.tokens, Expected(request));
    break;
  }
}

TEST(DrainTest, AStreamOutlivesItsConnectionsAgeOnlyByTheConfiguredGrace) {
  ServerConfig config = PatientConfig();
  config.connections.max_age = milliseconds(100);
  config.connections.max_age_grace = milliseconds(500);
  config.limits.max_stream_buffer_bytes = 1 << 30;  // nothing else ends the stream
  TestServer server(config);
  bool begun = false;
  while (!begun) {  // on a slow machine a connection may end before its stream begins
    const auto stub = v1::InferenceService::NewStub(TestServer::Connect(server.server().address()));
    GenerateStream stream(*stub, Request("old", kEndless));
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    begun = !stream.tokens.empty();
  }
}

}  // namespace
}  // namespace aft::server
