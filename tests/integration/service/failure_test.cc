// A model that fails while it serves, as clients, probes and operators see it.
#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr char kModel[] = "aft.v1.InferenceService/fake";
constexpr char kOther[] = "aft.v1.InferenceService/encoder";

v1::Model Describe(TestServer& server, const std::string& name) {
  v1::GetRequest request;
  v1::GetResponse response;
  request.set_name(name);
  grpc::ClientContext context;
  EXPECT_TRUE(server.models().Get(&context, request, &response).ok());
  return response.model();
}

grpc::Status Encode(TestServer& server) {
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text("text");
  return EncodeStream(server.inference(), request).Finish();
}

// A server with two models. The first one loses its device at its first step.
class LostDeviceTest : public testing::Test {
 protected:
  void Start(ServerConfig config) {
    server_ = std::make_unique<TestServer>(std::move(config));
    EXPECT_EQ(server_->Health("liveness"), HealthCheckResponse::SERVING);
    server_->control().FailNext(FakeCall::kSubmit, absl::UnavailableError("device lost"));
    const grpc::Status status = GenerateStream(server_->inference(), Request("x", 1)).Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("model \"fake\" has failed"));
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(LostDeviceTest, OneModelFailsTheOtherServesAndHealthReportsBoth) {
  Start(TestConfigWithEncoder());
  EXPECT_EQ(server_->Health(kModel), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server_->Health(kOther), HealthCheckResponse::SERVING);
  EXPECT_EQ(server_->Health(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server_->Health("liveness"), HealthCheckResponse::SERVING);  // until liveness_grace
  EXPECT_EQ(Describe(*server_, "fake").state(), v1::MODEL_STATE_FAILED);
  EXPECT_THAT(Describe(*server_, "fake").error(), HasSubstr("device lost"));
  EXPECT_EQ(Describe(*server_, "encoder").state(), v1::MODEL_STATE_READY);
  EXPECT_EQ(GenerateStream(server_->inference(), Request("x", 1)).Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Encode(*server_).ok());
  EXPECT_TRUE(server_->server().Drain());
}

TEST_F(LostDeviceTest, LivenessFailsAfterItsGraceAndWatchersAreTold) {
  ServerConfig config = TestConfigWithEncoder();
  config.health.liveness_grace = std::chrono::milliseconds(50);
  Start(config);
  HealthWatch watch(*server_, "liveness");
  auto status = watch.Next();
  while (status == HealthCheckResponse::SERVING) status = watch.Next();
  EXPECT_EQ(status, HealthCheckResponse::NOT_SERVING);
  EXPECT_TRUE(Encode(*server_).ok());
  watch.Cancel();
  watch.Finish();
}

TEST(FailureTest, AServerThatCannotLoadOneModelIsNotReadyUnlessAnyIsEnough) {
  for (const char* readiness : {"all", "any"}) {
    ServerConfig config = TestConfigWithEncoder();
    config.health.readiness = readiness;
    config.health.liveness_grace = std::chrono::milliseconds(0);
    TestServer server(config, [](const LoadOptions& options) -> absl::StatusOr<LoadedModel> {
      if (options.checkpoint_dir == "encoder") return absl::DataLossError("corrupt: \xff");
      return FakeModels().Load(options);
    });
    ASSERT_TRUE(server.server().WaitReady().ok());
    EXPECT_EQ(server.Health(""), std::string(readiness) == "any"
                                     ? HealthCheckResponse::SERVING
                                     : HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(server.Health(kOther), HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
    EXPECT_EQ(Encode(server).error_code(), grpc::StatusCode::UNAVAILABLE);
    ExpectServes(server);
    grpc::ClientContext context;
    v1::ListResponse list;
    ASSERT_TRUE(server.models().List(&context, v1::ListRequest(), &list).ok());
    EXPECT_EQ(list.models(1).error(), "corrupt: \xEF\xBF\xBD");
  }
}

TEST(FailureTest, AStuckModelEndsItsRequestsAndTheServerStillStops) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  config.health.step_timeout = std::chrono::milliseconds(200);
  config.health.liveness_grace = std::chrono::milliseconds(0);
  TestServer server(config);
  server.control().Hold();
  GenerateStream running(server.inference(), Request("held", kEndless));
  GenerateStream waiting(server.inference(), Request("waits", kEndless));
  EXPECT_EQ(running.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.Health(kModel), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::NOT_SERVING);
  const auto oip =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server.server().address()));
  grpc::ClientContext context;
  inference::ServerLiveResponse live;
  ASSERT_TRUE(oip->ServerLive(&context, inference::ServerLiveRequest(), &live).ok());
  EXPECT_FALSE(live.live());
  EXPECT_THAT(Describe(server, "fake").error(), HasSubstr("step_timeout_ms=200"));
  EXPECT_EQ(server.Metric("aft_model_state{model=\"fake\",state=\"failed\"}"), 1);
  EXPECT_EQ(server.Metric("aft_slots_used{model=\"fake\"}"), 0);
  EXPECT_EQ(server.Metric("aft_slots{model=\"fake\"}"), 0);
  EXPECT_EQ(server.Metric("aft_slots_used_ratio{model=\"fake\"}"), 0);
  EXPECT_FALSE(server.server().Drain());
}

}  // namespace
}  // namespace aft::server
