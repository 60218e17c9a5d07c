// The effects of a changed file of clients on calls under way and on the health service.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/methods/token_fixture.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/redis_server.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The clients are "team-a", which may use every model at first, and "team-b", which may use only
// the model "other".
class RevokedTest : public TokenTest {
 protected:
  void Start() { server_ = std::make_unique<TestServer>(config_); }

  // Gives team-a this token and these fields.
  void Change(const std::string& token, const std::string& fields) {
    Replace(config_.security.clients_file, ClientEntry("team-a", token, fields) +
                                               ClientEntry("team-b", "token b", "models: 'other'"));
    ASSERT_TRUE(server_->server().Reload(config_).ok());
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> Oip() {
    return inference::GRPCInferenceService::NewStub(
        TestServer::Connect(server_->server().address()));
  }

  // `value` is the metadata "authorization"; if it is empty, there is none.
  HealthCheckResponse::ServingStatus Check(const std::string& service,
                                           const std::string& value = "") {
    return server_->Health(service, value.empty() ? nullptr : Authorization(value));
  }
};

constexpr char kOwn[] = "Bearer token a";
constexpr char kFake[] = "aft.v1.InferenceService/fake";

ModelInferRequest LongRequest() {
  return InferBuilder("fake").Text("text_input", "x").Tokens(100'000).request();
}

const auto kNarrowed =
    StatusIs(absl::StatusCode::kPermissionDenied, "client \"team-a\" may not use model \"fake\"");

// When a client may no longer use a model, its stream continues, but requests for this model fail.
TEST_F(RevokedTest, AnInferStreamFollowsItsClientsCurrentModels) {
  const auto oip = Oip();
  server_->control().Hold();
  InferStream stream(*oip, Authorization(kOwn));
  ASSERT_TRUE(stream.Send(LongRequest()));
  server_->control().WaitUntilBlocked();
  Change("token a", "models: 'other'");
  server_->control().Resume();
  ModelStreamInferResponse response;
  while (stream.Next(response) && response.error_message().empty()) {
  }
  EXPECT_THAT(response.error_message(), HasSubstr("may not use model \"fake\""));
  ASSERT_TRUE(stream.Send(LongRequest()) && stream.Next(response));
  EXPECT_THAT(response.error_message(), HasSubstr("may not use model \"fake\""));
  Change("token a", "models: 'fake'");
  ASSERT_TRUE(stream.Send(InferBuilder("fake").Text("text_input", "x").Tokens(2).request()));
  for (const ModelStreamInferResponse& answer : stream.ReadAll()) {
    EXPECT_THAT(answer.error_message(), IsEmpty());
  }
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(RevokedTest, AnImportEndsWhenItsClientLosesTheModel) {
  grpc::ClientContext context;
  Authorization(kOwn)(context);
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest begin;
  begin.set_model("fake");
  begin.set_bytes(100);
  begin.set_chunk("x");
  ASSERT_TRUE(writer->Write(begin));
  while (server_->Metric("aft_states_bytes") == 0) std::this_thread::yield();  // reserved space
  Change("token a", "models: 'other'");
  EXPECT_THAT(writer->Finish(), kNarrowed);
}

TEST_F(RevokedTest, CallsEndWhenTheirTokenMovesToAnotherClient) {
  server_->control().Hold();
  GenerateStream running(server_->inference(), Request("x", 100'000), Authorization(kOwn));
  server_->control().WaitUntilBlocked();
  Replace(config_.security.clients_file, ClientEntry("team-c", "token a"));
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  server_->control().Resume();
  EXPECT_THAT(running.Finish(), StatusIs(absl::StatusCode::kUnauthenticated,
                                         "authorization: it is another client's now"));
  EXPECT_TRUE(Call(Authorization(kOwn)).ok());
}

TEST_F(RevokedTest, StateCallsThatWaitForRedisEndAtOnce) {
  server_.reset();
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  FakeRedis redis([&](const RedisCommand&) {
    going_on.wait();
    return FakeRedis::kHangUp;
  });
  config_.states.redis.address = redis.address();
  config_.states.redis.timeout = std::chrono::minutes(1);
  UseStateKey(folder_, config_);
  Start();
  server_->WaitForMetric("aft_states_redis_up", 1);
  const auto ask = [&](auto method, auto request, auto response) {
    return std::async(std::launch::async, [=, this]() mutable {
      grpc::ClientContext context;
      Authorization(kOwn)(context);
      return (server_->states().*method)(&context, request, &response);
    });
  };
  v1::StateServiceGetRequest get;
  get.set_id(std::string(32, 'a'));
  v1::StateServiceDeleteRequest remove;
  remove.set_id(std::string(32, 'a'));
  using Stub = v1::StateService::Stub;
  std::vector<std::future<grpc::Status>> calls;
  calls.push_back(ask(&Stub::Get, get, v1::StateServiceGetResponse()));
  calls.push_back(ask(&Stub::Delete, remove, v1::StateServiceDeleteResponse()));
  calls.push_back(ask(&Stub::List, v1::StateServiceListRequest(), v1::StateServiceListResponse()));
  // Redis has received one call, and the other two wait for their turn.
  server_->WaitForMetric("aft_states_redis_waiting", 2);
  Change("token new", "");
  for (std::future<grpc::Status>& call : calls) {
    EXPECT_THAT(call.get(),
                StatusIs(absl::StatusCode::kUnauthenticated, "authorization: unknown token"));
  }
  go_on.set_value();
  // Late answers do not end a call a second time.
  server_->WaitForMetric("aft_states_redis_waiting", 0);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
  for (const char* method : {"GetState", "DeleteState", "ListStates"}) {
    EXPECT_EQ(server_->Metric(absl::StrCat("aft_requests_total{method=\"", method, "\"}")), 1)
        << method;
  }
}

TEST_F(RevokedTest, HealthNamesModelsOnlyToClientsThatMayUseThem) {
  for (const char* open : {"", "aft.v1.InferenceService", "liveness"}) {
    EXPECT_EQ(Check(open), HealthCheckResponse::SERVING) << open;
  }
  EXPECT_EQ(Check(kFake, kOwn), HealthCheckResponse::SERVING);
  for (const char* others : {"", "Bearer token b", "Bearer token c", "token a"}) {
    EXPECT_EQ(Check(kFake, others), HealthCheckResponse::SERVICE_UNKNOWN) << others;
  }
  for (const char* value : {"", kOwn, "Bearer token b"}) {
    EXPECT_EQ(Check("aft.v1.InferenceService/other", value), HealthCheckResponse::SERVICE_UNKNOWN);
  }
}

TEST_F(RevokedTest, AWatchReportsAModelOnlyWhileItsClientMayUseIt) {
  HealthWatch own(*server_, kFake, Authorization(kOwn));
  HealthWatch other(*server_, kFake, Authorization("Bearer token b"));
  HealthWatch anybody(*server_, kFake);
  EXPECT_EQ(own.Next(), HealthCheckResponse::SERVING);
  for (HealthWatch* const stranger : {&other, &anybody}) {
    EXPECT_EQ(stranger->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  }
  Change("token new", "");  // team-a's old token is revoked
  EXPECT_EQ(own.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  Change("token a", "models: 'fake'");
  EXPECT_EQ(own.Next(), HealthCheckResponse::SERVING);
  Change("token a", "models: 'other'");  // team-a may no longer use "fake"
  EXPECT_EQ(own.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  // None of these watches learns the state of the model: the next event of each is its end.
  EXPECT_TRUE(server_->server().Drain());
  for (HealthWatch* const watcher : {&own, &other, &anybody}) {
    EXPECT_EQ(watcher->Next(), HealthWatch::kEnd);
    EXPECT_EQ(watcher->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

}  // namespace
}  // namespace aft::server
