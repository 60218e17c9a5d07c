#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(GenerateTest, StreamsStartedThenTokensThenFinished) {
  TestServer server(TestConfigWithMetrics());
  const v1::GenerateRequest request = Request("hello", 30);
  GenerateStream stream(server.inference(), request);
  ASSERT_TRUE(stream.Next());
  EXPECT_TRUE(stream.event().has_started());
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(stream.event().has_finished());
  EXPECT_EQ(stream.started.model(), "fake");
  EXPECT_EQ(stream.started.model_version(), "1");
  EXPECT_EQ(stream.started.seed(), 7);
  EXPECT_EQ(stream.started.prompt_tokens(), 5);
  EXPECT_EQ(stream.tokens, Expected(request));
  EXPECT_EQ(stream.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.finished.limit(), "stop.max_tokens=30");
  EXPECT_EQ(stream.finished.usage().prompt_tokens(), 5);
  EXPECT_EQ(stream.finished.usage().generated_tokens(), 30);
  EXPECT_GE(stream.finished.timings().total_us(), stream.finished.timings().first_token_us());
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Generate")), 1);
  EXPECT_EQ(server.Metric("aft_model_state{model=\"fake\",state=\"ready\"}"), 1);
}

TEST(GenerateTest, ReturnsTheSeedThatItDrew) {
  TestServer server;
  v1::GenerateRequest request = Request("seedless", 20);
  request.mutable_sampling()->clear_seed();
  GenerateStream first(server.inference(), request);
  ASSERT_TRUE(first.Finish().ok());
  GenerateStream second(server.inference(), request);
  ASSERT_TRUE(second.Finish().ok());
  EXPECT_NE(first.started.seed(), second.started.seed());
  request.mutable_sampling()->set_seed(first.started.seed());
  EXPECT_EQ(first.tokens, Expected(request));
}

TEST(ModelServiceTest, DescribesTheModels) {
  TestServer server;
  grpc::ClientContext list_context;
  v1::ListResponse list;
  ASSERT_TRUE(server.models().List(&list_context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).name(), "fake");
  EXPECT_EQ(list.models(0).state(), v1::MODEL_STATE_READY);
  EXPECT_EQ(list.models(0).slots(), 4);
  EXPECT_EQ(list.models(0).vocab_size(), 257);
  EXPECT_EQ(list.models(0).architecture(), "fake");
  EXPECT_EQ(list.models(0).device(), "cpu");
  EXPECT_EQ(list.models(0).weight_format(), "fp32");
  EXPECT_EQ(list.models(0).state_bytes(), 8);
  EXPECT_EQ(list.models(0).fingerprint(), 1);
  EXPECT_EQ(list.models(0).task(), v1::TASK_GENERATE);

  v1::GetRequest request;
  v1::GetResponse response;
  request.set_name("fake");
  grpc::ClientContext get_context;
  ASSERT_TRUE(server.models().Get(&get_context, request, &response).ok());
  EXPECT_EQ(response.model().SerializeAsString(), list.models(0).SerializeAsString());

  request.set_name("unknown");
  grpc::ClientContext missing_context;
  EXPECT_THAT(server.models().Get(&missing_context, request, &response),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"fake\"")));

  request.set_name("broken \xff");
  grpc::ClientContext broken_context;
  EXPECT_THAT(server.models().Get(&broken_context, request, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("aft.v1.GetRequest")));
}

}  // namespace
}  // namespace aft::server
