#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(GenerateTest, StreamsStartedThenTokensThenFinished) {
  TestServer server;
  const v1::GenerateRequest request = Request("hello", 30);
  GenerateStream stream(server.inference(), request);
  ASSERT_TRUE(stream.Next());
  EXPECT_TRUE(stream.event().has_started());
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(stream.event().has_finished());
  EXPECT_EQ(stream.started_count, 1);
  EXPECT_EQ(stream.finished_count, 1);
  EXPECT_EQ(stream.started.model(), "fake");
  EXPECT_EQ(stream.started.model_version(), "1");
  EXPECT_EQ(stream.started.seed(), 7);
  EXPECT_EQ(stream.started.prompt_tokens(), 5);
  EXPECT_EQ(stream.tokens, Expected(request));
  EXPECT_TRUE(stream.contiguous);
  EXPECT_EQ(stream.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.finished.limit(), "stop.max_tokens=30");
  EXPECT_EQ(stream.finished.usage().prompt_tokens(), 5);
  EXPECT_EQ(stream.finished.usage().generated_tokens(), 30);
  EXPECT_GE(stream.finished.timings().total_us(), stream.finished.timings().first_token_us());
}

TEST(GenerateTest, EightStreamsAtOnceEqualSingleResults) {
  TestServer server;  // 4 slots: half of them wait
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&server, i] {
      const v1::GenerateRequest request =
          Request(std::string(static_cast<size_t>(1 + 20 * i), static_cast<char>('a' + i)), 50,
                  static_cast<uint64_t>(i));
      GenerateStream stream(server.inference(), request);
      const grpc::Status status = stream.Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(stream.tokens, Expected(request));
      EXPECT_TRUE(stream.contiguous);
    });
  }
  for (std::thread& thread : threads) thread.join();
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

TEST(GenerateTest, AcceptsTextRawAndTokensAlike) {
  TestServer server;
  const v1::GenerateRequest text = Request("same", 10);
  v1::GenerateRequest raw = text;
  raw.set_raw("same");
  v1::GenerateRequest tokens = text;
  for (const char c : {'s', 'a', 'm', 'e'}) {
    tokens.mutable_tokens()->add_ids(static_cast<uint32_t>(c));
  }
  for (const v1::GenerateRequest& request : {text, raw, tokens}) {
    GenerateStream stream(server.inference(), request);
    ASSERT_TRUE(stream.Finish().ok());
    EXPECT_EQ(stream.tokens, Expected(text));
  }
}

TEST(GenerateTest, AnEmptyModelNameMeansTheOnlyModel) {
  TestServer server;
  v1::GenerateRequest request = Request("x", 3);
  request.clear_model();
  GenerateStream stream(server.inference(), request);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.started.model(), "fake");
}

TEST(GenerateTest, SendsLogprobsOnlyWhenAskedFor) {
  TestServer server;
  v1::GenerateRequest request = Request("x", 4);
  GenerateStream without(server.inference(), request);
  ASSERT_TRUE(without.ReadUntil(v1::GenerateResponse::kDelta));
  EXPECT_EQ(without.event().delta().logprobs_size(), 0);
  EXPECT_TRUE(without.Finish().ok());

  request.mutable_output()->set_top_logprobs(3);
  GenerateStream with(server.inference(), request);
  ASSERT_TRUE(with.ReadUntil(v1::GenerateResponse::kDelta));
  const v1::Delta& delta = with.event().delta();
  ASSERT_EQ(delta.logprobs_size(), delta.token_ids_size());
  EXPECT_EQ(delta.logprobs(0).logprob(), -1.0F);
  ASSERT_EQ(delta.logprobs(0).top_size(), 3);
  EXPECT_EQ(delta.logprobs(0).top(2).token_id(), 2);
  EXPECT_TRUE(with.Finish().ok());
}

TEST(GenerateTest, NamesTheStopThatEndedIt) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t /*hash*/, int64_t count) { return "hello world"[count % 11]; };
  TestServer server(TestConfig(), options);
  v1::GenerateRequest request = Request("0123456789A", 100);  // 11 tokens: output from 'h' on
  request.mutable_stop()->add_strings("o w");
  GenerateStream by_string(server.inference(), request);
  ASSERT_TRUE(by_string.Finish().ok());
  EXPECT_EQ(by_string.text, "hell");
  EXPECT_EQ(by_string.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(by_string.finished.stop_string(), "o w");

  request.mutable_stop()->clear_strings();
  request.mutable_stop()->add_token_ids('o');
  GenerateStream by_token(server.inference(), request);
  ASSERT_TRUE(by_token.Finish().ok());
  EXPECT_EQ(by_token.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(by_token.finished.stop_token_id(), 'o');
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

  v1::GetRequest request;
  v1::GetResponse response;
  request.set_name("fake");
  grpc::ClientContext get_context;
  ASSERT_TRUE(server.models().Get(&get_context, request, &response).ok());
  EXPECT_EQ(response.model().SerializeAsString(), list.models(0).SerializeAsString());

  request.set_name("nobody");
  grpc::ClientContext missing_context;
  const grpc::Status status = server.models().Get(&missing_context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"fake\""));

  request.set_name("broken \xff");
  grpc::ClientContext broken_context;
  const grpc::Status broken = server.models().Get(&broken_context, request, &response);
  EXPECT_EQ(broken.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(broken.error_message(), HasSubstr("aft.v1.GetRequest"));
}

TEST(MetricsTest, ThePageShowsWhatMoved) {
  TestServer server(TestConfigWithMetrics());
  GenerateStream stream(server.inference(), Request("twelve bytes", 30));
  ASSERT_TRUE(stream.Finish().ok());
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Generate")), 1);
  EXPECT_EQ(server.Metric("aft_prompt_tokens_total{model=\"fake\"}"), 12);
  EXPECT_EQ(server.Metric("aft_generated_tokens_total{model=\"fake\"}"), 30);
  EXPECT_EQ(server.Metric("aft_slots{model=\"fake\"}"), 4);
  EXPECT_EQ(server.Metric("aft_model_state{model=\"fake\",state=\"ready\"}"), 1);
  EXPECT_EQ(server.Metric("aft_ttft_seconds_count{model=\"fake\"}"), 1);
}

}  // namespace
}  // namespace aft::server
