// What every method of InferenceService promises, over real gRPC, with fake models.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observability/log.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A request of several steps where the method has more than one.
template <typename Request>
Request RequestOf(const std::string& model) {
  Request request;
  request.set_model(model);
  request.set_text(std::string(60, 'x'));
  return request;
}

struct GenerateMethod {
  using Request = v1::GenerateRequest;
  using Stream = GenerateStream;
  static constexpr char kName[] = "Generate";
  static constexpr char kModel[] = "fake";
  static constexpr char kOtherModel[] = "encoder";
  static constexpr char kOthersTask[] = "an encoder: it serves Encode";
  static StepGate& Gate(TestServer& server) { return server.control(); }
  static void FailNextStep(TestServer& server, const absl::Status& status) {
    server.control().FailNextCollect(status);
  }
};

struct ScoreMethod : GenerateMethod {
  using Request = v1::ScoreRequest;
  using Stream = ScoreStream;
  static constexpr char kName[] = "Score";
};

struct EncodeMethod {
  using Request = v1::EncodeRequest;
  using Stream = EncodeStream;
  static constexpr char kName[] = "Encode";
  static constexpr char kModel[] = "encoder";
  static constexpr char kOtherModel[] = "fake";
  static constexpr char kOthersTask[] = "a language model: it serves Generate and Score";
  static StepGate& Gate(TestServer& server) { return server.encoder_control(); }
  static void FailNextStep(TestServer& server, const absl::Status& status) {
    server.encoder_control().FailNext(status);
  }
};

// One request runs at a time, and one may wait.
template <typename Method>
class MethodTest : public testing::Test {
 protected:
  using Stream = typename Method::Stream;

  void Start(bool with_metrics = false) {
    ServerConfig config = TestConfigWithEncoder();
    if (with_metrics) config.metrics_address = "127.0.0.1:0";
    config.models[0].slots = 1;
    config.models[1].max_batch_rows = 1;
    config.limits.max_queued_requests = 1;
    config.drain.grace = std::chrono::hours(1);
    server_ = std::make_unique<TestServer>(config);
  }

  Stream Open(const std::string& model = Method::kModel,
              const typename Stream::Prepare& prepare = {}) {
    return Stream(server_->inference(), RequestOf<typename Method::Request>(model), prepare);
  }
  // A request that runs and whose step is held.
  Stream OpenHeld() {
    Method::Gate(*server_).Hold();
    Stream stream = Open();
    EXPECT_TRUE(stream.Next());
    Method::Gate(*server_).WaitUntilBlocked();
    return stream;
  }
  // REQUIRES: Start with metrics.
  void WaitUntilOneWaits() {
    server_->WaitForMetric(absl::StrCat("aft_requests_waiting{model=\"", Method::kModel, "\"}"), 1);
  }
  // And then it serves again.
  void TearDown() override {
    if (server_->server().lifecycle() != Lifecycle::kReady) return;
    Method::Gate(*server_).Resume();
    grpc::Status status;
    do {  // the place of a request whose client has left is free when the server has noticed
      status = Open().Finish();
    } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  std::unique_ptr<TestServer> server_;
};

using Methods = testing::Types<GenerateMethod, ScoreMethod, EncodeMethod>;
TYPED_TEST_SUITE(MethodTest, Methods);

TYPED_TEST(MethodTest, EchoesTheRequestIdOrMakesOne) {
  this->Start();
  for (const std::string& id : {std::string("my request 1"), std::string(128, '~')}) {
    auto own = this->Open(TypeParam::kModel, [&](grpc::ClientContext& context) {
      context.AddMetadata("x-request-id", id);
    });
    ASSERT_TRUE(own.Finish().ok());
    EXPECT_EQ(own.InitialMetadata("x-request-id"), id);
  }
  auto made = this->Open();
  ASSERT_TRUE(made.Finish().ok());
  EXPECT_THAT(made.InitialMetadata("x-request-id"), SizeIs(32));
}

TYPED_TEST(MethodTest, AnUnknownModelIsNotFoundAndTheAnswerNamesTheOnesThereAre) {
  this->Start(/*with_metrics=*/true);
  EXPECT_THAT(
      this->Open("nobody").Finish(),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("\"nobody\""), HasSubstr("\"fake\""), HasSubstr("\"encoder\""))));
  EXPECT_EQ(this->server_->Metric(RequestsTotal("NOT_FOUND", TypeParam::kName, "")), 1);
}

TYPED_TEST(MethodTest, AModelForOtherMethodsSaysWhichItServes) {
  this->Start();
  EXPECT_THAT(this->Open(TypeParam::kOtherModel).Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("model \"", TypeParam::kOtherModel, "\" is ",
                                    TypeParam::kOthersTask, ", not ", TypeParam::kName)));
}

TYPED_TEST(MethodTest, ABadFieldIsNamedAndCounted) {
  this->Start(/*with_metrics=*/true);
  typename TypeParam::Request request;
  request.set_model(TypeParam::kModel);
  request.set_text("");
  typename TypeParam::Stream stream(this->server_->inference(), request);
  EXPECT_THAT(stream.Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument, "text: must not be empty"));
  EXPECT_TRUE(stream.events.empty());
  EXPECT_EQ(
      this->server_->Metric(RequestsTotal("INVALID_ARGUMENT", TypeParam::kName, TypeParam::kModel)),
      1);
  EXPECT_EQ(this->server_->Metric(absl::StrCat("aft_rejected_total{model=\"", TypeParam::kModel,
                                               "\",reason=\"invalid\"}")),
            1);
}

TYPED_TEST(MethodTest, AFullQueueRefusesWithARetryHint) {
  this->Start(/*with_metrics=*/true);
  auto running = this->OpenHeld();
  auto waiting = this->Open();
  this->WaitUntilOneWaits();
  auto refused = this->Open();
  EXPECT_THAT(refused.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=1")));
  int hint_ms = 0;
  ASSERT_TRUE(absl::SimpleAtoi(refused.TrailingMetadata("grpc-retry-pushback-ms"), &hint_ms));
  EXPECT_GE(hint_ms, 100);
  EXPECT_EQ(this->server_->Metric(
                RequestsTotal("RESOURCE_EXHAUSTED", TypeParam::kName, TypeParam::kModel)),
            1);
  TypeParam::Gate(*this->server_).Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(waiting.Finish().ok());
}

TYPED_TEST(MethodTest, TheClientsDeadlineEndsARequestThatWaits) {
  this->Start();
  auto running = this->OpenHeld();
  auto stream = this->Open(TypeParam::kModel, [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  });
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  TypeParam::Gate(*this->server_).Resume();
  EXPECT_TRUE(running.Finish().ok());
}

TYPED_TEST(MethodTest, AFailedStepShowsTheRequestsIdAndNoInternals) {
  this->Start();
  auto stream = this->OpenHeld();
  TypeParam::FailNextStep(*this->server_, absl::InternalError("secret pointer 0xdead"));
  testing::internal::CaptureStderr();
  TypeParam::Gate(*this->server_).Resume();
  const grpc::Status status = stream.Finish();
  log::Flush(std::chrono::hours(1));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string id = stream.InitialMetadata("x-request-id");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "internal error; request id " + id));
  EXPECT_THAT(log, HasSubstr("request " + id + ": a model"));
  EXPECT_THAT(log, HasSubstr("secret pointer 0xdead"));
}

TYPED_TEST(MethodTest, DrainFinishesWhatRunsReleasesWhatWaitsAndRefusesTheRest) {
  this->Start(/*with_metrics=*/true);
  auto running = this->OpenHeld();
  auto waiting = this->Open();
  this->WaitUntilOneWaits();
  std::thread drain([this] { this->server_->server().Drain(); });
  const std::string labels = absl::StrCat("{model=\"", TypeParam::kModel, "\",");
  this->server_->WaitForMetric("aft_model_state" + labels + "state=\"draining\"}", 1);
  EXPECT_EQ(this->server_->server().lifecycle(), Lifecycle::kDraining);
  EXPECT_EQ(this->server_->Metric("aft_draining"), 1);
  EXPECT_FALSE(this->Open().Finish().ok());
  TypeParam::Gate(*this->server_).Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
  EXPECT_EQ(this->server_->server().lifecycle(), Lifecycle::kStopped);
}

}  // namespace
}  // namespace aft::server
