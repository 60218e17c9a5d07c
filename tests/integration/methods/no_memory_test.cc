// Answers for which the process has no memory, over real gRPC. The largest one is larger than
// anything that the call allocates before it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/short_memory.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::StartsWith;

constexpr size_t kSmall = 30'000;

TEST(NoMemoryTest, AStreamWhoseMessageHasNoMemoryEndsAlone) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].max_step_tokens = 512;  // all scores come in one message
  TestServer server(config);
  v1::ScoreRequest request;
  request.set_model("fake");
  request.set_text(std::string(500, 's'));
  request.mutable_output()->set_top_logprobs(20);
  {
    const ShortMemory none(kSmall);
    ScoreStream stream(server.inference(), request);
    EXPECT_THAT(stream.Finish(),
                StatusIs(absl::StatusCode::kResourceExhausted, StartsWith("memory: ")));
  }
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "Score")), 1);
  ScoreStream stream(server.inference(), request);
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric(kMemoryUsed, 0);
}

TEST(NoMemoryTest, AnAnswerThatCannotBeSentIsReportedAsThatError) {
  TestServer server(TestConfigWithMetrics());
  v1::GenerateRequest request = Request("abc", 500);
  request.mutable_output()->set_top_logprobs(20);
  request.mutable_store();
  grpc::ClientContext context;
  v1::CompleteResponse response;
  {
    const ShortMemory none(kSmall);
    EXPECT_THAT(server.inference().Complete(&context, request, &response),
                StatusIs(absl::StatusCode::kResourceExhausted, StartsWith("memory: ")));
  }
  EXPECT_EQ(RetryHintOf(context), "1000");
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "Complete")), 1);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Complete")), 0);
  EXPECT_EQ(server.Metric("aft_states_stored_total"), 1);
  server.WaitForMetric("aft_states", 0);  // no client knows its id
}

}  // namespace
}  // namespace aft::server
