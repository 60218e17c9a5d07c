// Tests how the client library uses several servers, and one that drains, dies and comes back, and
// how long it resumes a stream. Calls that a server refuses are in the contract
// (contract/retries.textproto).
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aft/v1/inference.grpc.pb.h"
#include "client/lib/aft_client.h"
#include "client/lib/call.h"
#include "client/lib/resumable.h"
#include "client/lib/stream_checker.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kPatience{30'000};

v1::GenerateRequest AnyPrompt() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

std::unique_ptr<Client> ConnectTo(const std::string& address, int max_attempts = 5) {
  ClientOptions options;
  options.address = address;
  options.max_attempts = max_attempts;
  return *Client::Create(options);
}

class TwoServersTest : public testing::Test {
 protected:
  TwoServersTest() {
    Script script = TextScript({"ab"});
    script.other_events.push_back(std::make_shared<inference::ModelInferResponse>());
    for (FakeServer* server : {&a_, &b_}) server->SetScript(script);
    client_ = ConnectTo(absl::StrCat("ipv4:", a_.address(), ",", b_.address()));
  }

  // Sends calls until one of them has gone to `server`.
  void CallUntilReached(FakeServer& server) {
    const int before = server.requests();
    while (server.requests() == before) ASSERT_TRUE(client_->Generate(AnyPrompt()).ok());
  }
  // Sends calls until ten in a row have gone to the other server.
  void CallUntilLeftOut(FakeServer& server) {
    int before = -1;
    while (server.requests() != before) {
      before = server.requests();
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(client_->Generate(AnyPrompt()).ok());
    }
  }

  FakeServer a_;
  FakeServer b_;
  std::unique_ptr<Client> client_;
};

TEST_F(TwoServersTest, CallsTakeTurns) {
  CallUntilReached(a_);
  CallUntilReached(b_);
  const int before = a_.requests();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client_->Generate(AnyPrompt()).ok());
  EXPECT_EQ(a_.requests() - before, 5);
}

TEST_F(TwoServersTest, AServerThatDoesNotServeIsLeftOut) {
  CallUntilReached(a_);
  a_.SetServing(false);
  CallUntilLeftOut(a_);
  a_.SetServing(true);
  CallUntilReached(a_);
}

TEST_F(TwoServersTest, ACallThatOneServerRefusesGoesToTheOther) {
  CallUntilReached(a_);
  CallUntilReached(b_);
  a_.RefuseNext(1000, {grpc::UNAVAILABLE, "not now"}, {{"grpc-retry-pushback-ms", "0"}});
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client_->Generate(AnyPrompt()).ok());
  EXPECT_GE(b_.requests(), 20);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client_->Infer({}).ok());
  EXPECT_GE(b_.requests(), 40);
}

TEST(OneServerTest, AServerThatDoesNotServeGetsNoGenerations) {
  FakeServer server;
  server.SetServing(false);
  const auto client = ConnectTo(server.address(), 1);
  const absl::Status status = client->Generate(AnyPrompt()).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat(server.address(),
                                    " is not serving: loading or draining; try again later")));
  EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kServer);
  EXPECT_EQ(server.requests(), 0);
  EXPECT_EQ(*client->Health(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_TRUE(client->ListModels().ok());
  EXPECT_TRUE(client->LoadModel("m").ok());
  EXPECT_TRUE(client->UnloadModel("m").ok());
  EXPECT_FALSE(client->WaitForServer(milliseconds(1)));
  server.SetServing(true);
  EXPECT_TRUE(client->WaitForServer(kPatience));
}

TEST(OneServerTest, ARestartedServerIsFoundAgain) {
  auto server = std::make_unique<FakeServer>();
  const int port = server->port();
  server->SetScript(TextScript({"ab"}));
  const auto client = ConnectTo(server->address());
  ASSERT_TRUE(client->Generate(AnyPrompt()).ok());
  server.reset();
  EXPECT_THAT(client->Generate(AnyPrompt()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is the server running?")));
  server = std::make_unique<FakeServer>(port);
  server->SetScript(TextScript({"ab"}));
  ASSERT_TRUE(client->WaitForServer(kPatience));
  EXPECT_TRUE(client->Generate(AnyPrompt()).ok());
}

class StreamWithClocks final : public Resumable {
 public:
  StreamWithClocks(const ClientOptions& client, ResumableClocks clocks)
      : Resumable(client, CallOptions(), StreamChecker(), std::move(clocks)) {}

  using Resumable::Check;
  using Resumable::EndCall;
};

TEST(DeadlineTest, AStepOfTheWallClockMovesNoDeadlineOfAStream) {
  FakeServer server;
  server.SetScript(FailedScript({grpc::UNAVAILABLE, "not now"}, {StartedEvent(7, 1)}));
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  ClientOptions options;
  options.deadline = std::chrono::minutes(10);
  auto wall = std::chrono::system_clock::now();
  auto steady = std::chrono::steady_clock::now();
  StreamWithClocks stream(options,
                          {.wall = [&] { return wall; }, .steady = [&] { return steady; }});
  Call broken;
  ASSERT_TRUE(stream.Prepare(broken).ok());
  EXPECT_EQ(broken.context.deadline(), wall + std::chrono::minutes(10));
  const auto reader = stub->Generate(&broken.context, AnyPrompt());
  v1::GenerateResponse event;
  while (reader->Read(&event)) EXPECT_EQ(stream.Check(event), Resumable::Verdict::kDeliver);
  const grpc::Status status = reader->Finish();
  steady += std::chrono::minutes(1);
  wall += std::chrono::hours(1);
  EXPECT_TRUE(stream.EndCall(status, broken).has_value());  // nine minutes are left
  wall -= std::chrono::hours(2);
  Call resumed;
  ASSERT_TRUE(stream.Prepare(resumed).ok());
  EXPECT_EQ(resumed.context.deadline(), wall + std::chrono::minutes(9));
  steady += std::chrono::minutes(9);
  EXPECT_EQ(stream.EndCall(status, broken), std::nullopt);
}

}  // namespace
}  // namespace aft::client
