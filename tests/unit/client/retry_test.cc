// What the client library does about servers that refuse, drain, die and come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kPatience{30'000};

v1::GenerateRequest Prompt(size_t bytes = 5) {
  v1::GenerateRequest request;
  request.set_text(std::string(bytes, 'x'));
  return request;
}

std::unique_ptr<Client> Connect(const std::string& address, int max_attempts = 5) {
  ClientOptions options;
  options.address = address;
  options.max_attempts = max_attempts;
  return *Client::Create(options);
}

grpc::Status Refusal(grpc::StatusCode code = grpc::UNAVAILABLE) { return {code, "not now"}; }

const std::multimap<std::string, std::string> kAtOnce = {{"grpc-retry-pushback-ms", "0"}};

class RetryTest : public testing::Test {
 protected:
  RetryTest() { server_.SetScript(TextScript({"ab"})); }

  absl::Status Generate(int max_attempts = 5, const v1::GenerateRequest& request = Prompt()) {
    return Connect(server_.address(), max_attempts)->Generate(request).status();
  }

  FakeServer server_;
};

TEST_F(RetryTest, ARefusedCallIsSentAgain) {
  for (const grpc::StatusCode code :
       {grpc::UNAVAILABLE, grpc::RESOURCE_EXHAUSTED, grpc::CANCELLED}) {
    const int before = server_.requests();
    server_.RefuseNext(4, Refusal(code), kAtOnce);
    EXPECT_TRUE(Generate().ok()) << code;
    EXPECT_EQ(server_.requests() - before, 5);
  }
}

TEST_F(RetryTest, WithoutAHintItIsSentAgainAfterABackOff) {
  server_.RefuseNext(1, Refusal());
  EXPECT_TRUE(Generate().ok());
  EXPECT_EQ(server_.requests(), 2);
}

TEST_F(RetryTest, TheLimitOfAttemptsHolds) {
  for (const int attempts : {1, 2, 5}) {
    const int before = server_.requests();
    server_.RefuseNext(100, Refusal(), kAtOnce);
    const absl::Status status = Generate(attempts);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not now")));
    EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kServer);
    EXPECT_EQ(GetErrorDetails(status).request_id, "fake-1");  // from the trailers
    EXPECT_EQ(server_.requests() - before, attempts);
  }
}

TEST_F(RetryTest, TheServersHintIsObeyed) {
  // A minute's pause: the deadline comes first, and no attempt before it.
  server_.RefuseNext(1, Refusal(), {{"grpc-retry-pushback-ms", "60000"}});
  EXPECT_THAT(Connect(server_.address())->Generate(Prompt(), {}, {.deadline = milliseconds(300)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  EXPECT_EQ(server_.requests(), 1);
  // "Never."
  server_.RefuseNext(1, Refusal(), {{"grpc-retry-pushback-ms", "-1"}});
  EXPECT_THAT(Generate(), StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_EQ(server_.requests(), 2);
}

TEST_F(RetryTest, OtherStatusesAreFinal) {
  for (const grpc::StatusCode code : {grpc::INVALID_ARGUMENT, grpc::INTERNAL, grpc::NOT_FOUND}) {
    const int before = server_.requests();
    server_.RefuseNext(1, Refusal(code), kAtOnce);
    EXPECT_FALSE(Generate().ok());
    EXPECT_EQ(server_.requests() - before, 1) << code;
    server_.RefuseNext(0, {});
  }
}

TEST_F(RetryTest, WhatHasBegunIsNotRepeated) {
  server_.SetScript(FailedScript(Refusal(), {StartedEvent()}));
  EXPECT_THAT(Generate(), StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_EQ(server_.requests(), 1);
}

TEST_F(RetryTest, LongPromptsAreSentAgainAsWell) {
  server_.RefuseNext(2, Refusal(), kAtOnce);
  EXPECT_TRUE(Generate(5, Prompt(3 << 20)).ok());
  EXPECT_EQ(server_.requests(), 3);
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text().size(), size_t{3} << 20);
}

class TwoServersTest : public testing::Test {
 protected:
  TwoServersTest() {
    for (FakeServer* server : {&a_, &b_}) server->SetScript(TextScript({"ab"}));
    client_ = Connect(absl::StrCat("ipv4:", a_.address(), ",", b_.address()));
  }

  // Calls until one of them went to `server`.
  void CallUntilReached(FakeServer& server) {
    const int before = server.requests();
    while (server.requests() == before) ASSERT_TRUE(client_->Generate(Prompt()).ok());
  }
  // Calls until ten in a row went elsewhere.
  void CallUntilLeftOut(FakeServer& server) {
    int before = -1;
    while (server.requests() != before) {
      before = server.requests();
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(client_->Generate(Prompt()).ok());
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
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client_->Generate(Prompt()).ok());
  EXPECT_EQ(a_.requests() - before, 5);
}

TEST_F(TwoServersTest, TheOneThatDoesNotServeIsLeftOutUntilItDoes) {
  CallUntilReached(a_);
  a_.SetServing(false);
  CallUntilLeftOut(a_);
  a_.SetServing(true);
  CallUntilReached(a_);
}

TEST_F(TwoServersTest, WhatOneRefusesGoesToTheOther) {
  CallUntilReached(a_);
  CallUntilReached(b_);
  a_.RefuseNext(1000, Refusal(), kAtOnce);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client_->Generate(Prompt()).ok());
  EXPECT_GE(b_.requests(), 20);
}

TEST(OneServerTest, WhoDoesNotServeIsAskedNothingButHowItIs) {
  FakeServer server;
  server.SetServing(false);
  const auto client = Connect(server.address(), 1);
  const absl::Status status = client->Generate(Prompt()).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat(server.address(),
                                    " is not serving: loading or draining; try again later")));
  EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kServer);
  EXPECT_EQ(server.requests(), 0);
  EXPECT_EQ(*client->Health(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_TRUE(client->ListModels().ok());
  EXPECT_FALSE(client->WaitForServer(milliseconds(1)));
  server.SetServing(true);
  EXPECT_TRUE(client->WaitForServer(kPatience));
}

TEST(OneServerTest, ARestartedServerIsFoundAgain) {
  auto server = std::make_unique<FakeServer>();
  const int port = server->port();
  server->SetScript(TextScript({"ab"}));
  const auto client = Connect(server->address());
  ASSERT_TRUE(client->Generate(Prompt()).ok());
  server.reset();
  EXPECT_THAT(client->Generate(Prompt()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is the server running?")));
  server = std::make_unique<FakeServer>(port);
  server->SetScript(TextScript({"ab"}));
  ASSERT_TRUE(client->WaitForServer(kPatience));
  EXPECT_TRUE(client->Generate(Prompt()).ok());
}

}  // namespace
}  // namespace aft::client
