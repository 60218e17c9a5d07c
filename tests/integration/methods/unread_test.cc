// Unary answers that their clients do not read, over real gRPC: they are charged, and they end.
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/captured_log.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

constexpr char kStuckCalls[] = "aft_stuck_calls_total";

struct Question {
  const char* path;
  std::function<std::unique_ptr<google::protobuf::Message>()> request;
};

// A request for the model "fake", if the message has a model.
template <typename Request>
std::unique_ptr<google::protobuf::Message> Of() {
  auto request = std::make_unique<Request>();
  if constexpr (requires { request->set_name("fake"); }) request->set_name("fake");
  return request;
}

class UnreadTest : public StateTest {
 protected:
  // Makes calls whose answers are not read yet. The window has room only for gRPC's message head.
  std::deque<RawCall> Ask(const Question& question, int calls, const Prepare& prepare) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 5);
    channel_ = TestServer::ConnectWithASmallWindow(server_->server().address(), arguments);
    std::deque<RawCall> asked;
    for (int i = 0; i < calls; ++i) {
      asked.emplace_back(*channel_, question.path, question.request()->SerializeAsString(),
                         prepare);
    }
    return asked;
  }

  std::shared_ptr<grpc::Channel> channel_;
};

// Calls that only a known client may make. The client "a" owns the state.
std::vector<Question> Charged(const std::string& state) {
  return {
      {"/aft.v1.ModelService/List", Of<v1::ListRequest>},
      {"/aft.v1.ModelService/Get", Of<v1::GetRequest>},
      {"/aft.v1.StateService/List", Of<v1::StateServiceListRequest>},
      {"/aft.v1.StateService/Get",
       [state] {
         auto request = std::make_unique<v1::StateServiceGetRequest>();
         request->set_id(state);
         return request;
       }},
      {"/inference.GRPCInferenceService/ModelReady", Of<inference::ModelReadyRequest>},
      {"/inference.GRPCInferenceService/ServerMetadata", Of<inference::ServerMetadataRequest>},
      {"/inference.GRPCInferenceService/ModelMetadata", Of<inference::ModelMetadataRequest>},
      {"/inference.GRPCInferenceService/ModelConfig", Of<inference::ModelConfigRequest>},
      {"/inference.GRPCInferenceService/ModelStatistics", Of<inference::ModelStatisticsRequest>},
      {"/inference.GRPCInferenceService/RepositoryIndex", Of<inference::RepositoryIndexRequest>},
  };
}

// Calls without authentication.
std::vector<Question> Free() {
  return {
      {"/grpc.health.v1.Health/Check",
       [] { return std::make_unique<grpc::health::v1::HealthCheckRequest>(); }},
      {"/grpc.health.v1.Health/List", Of<grpc::health::v1::HealthListRequest>},
      {"/inference.GRPCInferenceService/ServerLive", Of<inference::ServerLiveRequest>},
      {"/inference.GRPCInferenceService/ServerReady", Of<inference::ServerReadyRequest>},
  };
}

TEST_F(UnreadTest, AnswersAreChargedUntilTheyAreRead) {
  KnowClients();
  config_.limits.write_stall = std::chrono::hours(1);
  Start();
  const std::string state = Run(Turn("hello", 10), As("a")).finished.state().id();
  server_->WaitForMetric(kMemoryUsed, 0);
  for (const Question& question : Charged(state)) {
    SCOPED_TRACE(question.path);
    std::string answer;
    ASSERT_TRUE(Ask(question, 1, As("a")).front().Next(answer));
    ASSERT_NE(answer, "");
    server_->WaitForMetric(kMemoryUsed, 0);
    std::deque<RawCall> unread = Ask(question, 3, As("a"));
    server_->WaitForMetric(kMemoryUsed, 3 * (kCall + static_cast<double>(answer.size())));
    for (RawCall& call : unread) EXPECT_TRUE(call.Finish().ok());
    server_->WaitForMetric(kMemoryUsed, 0);
  }
}

TEST_F(UnreadTest, UnreadCallsAreCancelled) {
  KnowClients();
  UseStateFolder(folder_, config_);
  Start();
  const std::string state = Run(Turn("hello", 10), As("a")).finished.state().id();
  config_.limits.write_stall = std::chrono::milliseconds(50);
  server_.reset();
  Start();  // with the same states
  std::vector<Question> all = Charged(state);
  for (Question& question : Free()) all.push_back(std::move(question));
  const CapturedLog log;
  const Prepare named = [](grpc::ClientContext& context) {
    As("a")(context);
    context.AddMetadata("x-request-id", "mine");
  };
  double stuck = server_->Metric(kStuckCalls);
  for (const Question& question : all) {
    SCOPED_TRACE(question.path);
    std::deque<RawCall> unread = Ask(question, 3, named);
    server_->WaitForMetric(kStuckCalls, stuck += 3);
    server_->WaitForMetric(kMemoryUsed, 0);  // although the client still does not read
    for (RawCall& call : unread) EXPECT_FALSE(call.Finish().ok());
  }
  const std::vector<LogLine> lines = log.Lines("request.stuck");
  EXPECT_EQ(lines.size(), 3 * all.size());
  for (const LogLine& line : lines) {
    EXPECT_EQ(line["id"], "mine");
    EXPECT_NE(line["trace_id"], "");
  }
}

TEST_F(UnreadTest, AClientThatFillsItsShareIsRefusedAndOthersAreNot) {
  KnowClients();
  config_.limits.write_stall = std::chrono::hours(1);
  config_.limits.max_memory_bytes = 5 * static_cast<int64_t>(kCall);
  Start();
  const std::vector<Question> questions = Charged("");
  const Question& list = questions.front();
  const std::deque<RawCall> unread = Ask(list, 2, As("a"));  // there is no space for a third answer
  while (server_->Metric(kMemoryUsed) <= 2 * kCall) std::this_thread::yield();
  EXPECT_THAT(Ask(list, 1, As("a")).front().Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_client_memory_bytes")));
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 1);
  EXPECT_TRUE(Ask(list, 1, As("b")).front().Finish().ok());
  for (const Question& question : Free()) {
    EXPECT_TRUE(Ask(question, 1, {}).front().Finish().ok()) << question.path;
  }
}

}  // namespace
}  // namespace aft::server
