// Encode over real gRPC, with a fake encoder.
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::EncodeRequest EncodeOf(const std::string& text) {
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text(text);
  return request;
}

// With batches that run at once, so that a test of one request need not wait.
ServerConfig Eager() {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].batch.max_delay = std::chrono::microseconds(0);
  return config;
}

// One Started, vectors without a gap, one Finished; all the values.
std::vector<float> Values(const EncodeStream& stream, size_t tokens, uint32_t width = 3) {
  EXPECT_GE(stream.events.size(), 3U);
  EXPECT_TRUE(stream.events.front().has_started());
  EXPECT_EQ(stream.events.front().started().model(), "encoder");
  EXPECT_EQ(stream.events.front().started().tokens(), tokens);
  EXPECT_EQ(stream.events.front().started().width(), width);
  std::vector<float> values;
  for (size_t e = 1; e + 1 < stream.events.size(); ++e) {
    const v1::Vectors& vectors = stream.events[e].vectors();
    EXPECT_EQ(size_t{vectors.first_index()} * width, values.size());
    EXPECT_GT(vectors.values_size(), 0);
    values.insert(values.end(), vectors.values().begin(), vectors.values().end());
  }
  EXPECT_TRUE(stream.events.back().has_finished());
  return values;
}

std::vector<float> Expected(const std::string& text, FakeEncoderRunner::Options options = {}) {
  return FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode(text));
}

TEST(EncodeTest, StreamsAVectorForEachToken) {
  ServerConfig config = Eager();
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  EncodeStream stream = StartEncode(server.inference(), EncodeOf("hello"));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Values(stream, 5), Expected("hello"));
  EXPECT_EQ(stream.events.back().finished().batch_rows(), 1U);
  EXPECT_EQ(server.Metric("aft_requests_total{code=\"OK\",method=\"Encode\",model=\"encoder\"}"),
            1);
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 5);
  EXPECT_EQ(server.Metric("aft_step_rows_count{model=\"encoder\"}"), 1);
  EXPECT_EQ(server.Metric("aft_queue_seconds_count{model=\"encoder\"}"), 1);
}

TEST(EncodeTest, OneStepServesManyRequests) {
  ServerConfig config = TestConfigWithEncoder();  // a batch runs only when it is full
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  server.encoder_control().Hold();
  std::deque<EncodeStream> streams;
  std::vector<std::string> texts;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(std::string(static_cast<size_t>(1 + i), static_cast<char>('a' + i)));
    streams.push_back(StartEncode(server.inference(), EncodeOf(texts.back())));
    ASSERT_TRUE(streams.back().Next());  // accepted
  }
  server.encoder_control().WaitUntilBlocked();
  server.encoder_control().Resume();
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(streams[i].Finish().ok());
    EXPECT_EQ(Values(streams[i], texts[i].size()), Expected(texts[i]));
    EXPECT_EQ(streams[i].events.back().finished().batch_rows(), 4U);
  }
  ASSERT_EQ(server.encoder_control().batches().size(), 2U);
  EXPECT_EQ(server.encoder_control().batches()[0].size(), 4U);
  EXPECT_EQ(server.Metric("aft_step_rows_sum{model=\"encoder\"}"), 8);
  EXPECT_EQ(server.Metric("aft_step_tokens_sum{model=\"encoder\"}"), 36);
}

TEST(EncodeTest, LongAnswersComeInMessagesOfBoundedSize) {
  ServerConfig config = Eager();
  config.models[1].batch.max_tokens = 2000;
  FakeEncoderRunner::Options options;
  options.width = 700;
  TestServer server(config, {}, options);
  const std::string text(2000, 'x');
  EncodeStream stream = StartEncode(server.inference(), EncodeOf(text));
  ASSERT_TRUE(stream.Finish().ok());  // gRPC's default limit of a message is 4 MiB; this is 5.6 MB
  EXPECT_GT(stream.events.size(), 20U);
  for (const v1::EncodeResponse& event : stream.events) {
    EXPECT_LT(event.ByteSizeLong(), size_t{300} << 10);
  }
  EXPECT_EQ(Values(stream, text.size(), 700), Expected(text, options));
}

TEST(EncodeTest, PooledAnswersAreOneVector) {
  TestServer server(Eager());
  const auto pooled = [&](v1::Pooling pooling, bool normalize) {
    v1::EncodeRequest request = EncodeOf("\x0a\x14");
    request.set_pooling(pooling);
    request.set_normalize(normalize);
    EncodeStream stream = StartEncode(server.inference(), request);
    EXPECT_TRUE(stream.Finish().ok());
    return Values(stream, 2);
  };
  EXPECT_THAT(pooled(v1::POOLING_MEAN, false), ElementsAre(2015.25F, 2015.0F, 2014.75F));
  EXPECT_THAT(pooled(v1::POOLING_FIRST, false), ElementsAre(2010.0F, 2009.75F, 2009.5F));
  EXPECT_THAT(pooled(v1::POOLING_LAST, false), ElementsAre(2020.5F, 2020.25F, 2020.0F));
  double squares = 0;
  for (const float value : pooled(v1::POOLING_MEAN, true)) squares += double{value} * double{value};
  EXPECT_NEAR(squares, 1, 1e-6);
}

TEST(EncodeTest, BadFieldsAreNamed) {
  ServerConfig config = Eager();
  config.limits.max_prompt_bytes = 100;
  TestServer server(config);
  const auto refusal = [&](const v1::EncodeRequest& request) {
    EncodeStream stream = StartEncode(server.inference(), request);
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(stream.events.empty());
    return status.error_message();
  };
  v1::EncodeRequest request = EncodeOf("x");
  request.clear_text();
  EXPECT_EQ(refusal(request), "text_to_encode: one of text, raw, tokens must be set");
  EXPECT_EQ(refusal(EncodeOf("")), "text: must not be empty");
  EXPECT_EQ(refusal(EncodeOf(std::string(101, 'x'))), "text: must have at most 100 bytes, got 101");
  EXPECT_EQ(refusal(EncodeOf(std::string(65, 'x'))),
            "text: must have at most 64 tokens (the model's batch.max_tokens), got 65");
  for (int i = 0; i < 65; ++i) request.mutable_tokens()->add_ids(1);
  EXPECT_THAT(refusal(request), HasSubstr("tokens.ids: must have at most 64 tokens"));
  request = EncodeOf("x");
  request.set_pooling(static_cast<v1::Pooling>(17));
  EXPECT_EQ(refusal(request), "pooling: must be a value of aft.v1.Pooling, got 17");
  EncodeStream longest = StartEncode(server.inference(), EncodeOf(std::string(64, 'x')));
  EXPECT_TRUE(longest.Finish().ok());
}

TEST(EncodeTest, ALanguageModelDoesNotEncode) {
  TestServer server(TestConfigWithEncoder());
  v1::EncodeRequest request = EncodeOf("x");
  request.set_model("fake");
  EncodeStream stream = StartEncode(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(),
            "model \"fake\" is a language model: it serves Generate and Score, not Encode");
}

TEST(EncodeTest, ACancelledRequestLeavesTheBatchBeforeItRuns) {
  ServerConfig config = TestConfigWithEncoder();
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  EncodeStream leaver = StartEncode(server.inference(), EncodeOf("leaver"));
  ASSERT_TRUE(leaver.Next());
  leaver.context().TryCancel();
  EXPECT_EQ(leaver.Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.WaitForMetric("aft_requests_total{code=\"CANCELLED\",method=\"Encode\",model=\"encoder\"}",
                       1);
  std::deque<EncodeStream> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(StartEncode(server.inference(), EncodeOf("stayer")));
  }
  for (EncodeStream& stream : streams) {
    EXPECT_TRUE(stream.Finish().ok());
    EXPECT_EQ(stream.events.back().finished().batch_rows(), 4U);
  }
  EXPECT_EQ(server.encoder_control().batches().size(), 1U);
}

TEST(EncodeTest, TheClientsDeadlineEndsARequestThatWaits) {
  TestServer server(TestConfigWithEncoder());
  EncodeStream stream =
      StartEncode(server.inference(), EncodeOf("alone"), [](grpc::ClientContext& context) {
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
      });
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(EncodeTest, AFullQueueRefusesWithARetryHint) {
  ServerConfig config = TestConfigWithEncoder();
  config.limits.max_queued_requests = 1;
  TestServer server(config);
  server.encoder_control().Hold();
  std::deque<EncodeStream> streams;
  for (int i = 0; i < 5; ++i) {
    streams.push_back(StartEncode(server.inference(), EncodeOf("x")));
    ASSERT_TRUE(streams.back().Next());
  }
  EncodeStream refused = StartEncode(server.inference(), EncodeOf("x"));
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("max_queued_requests=1"));
  EXPECT_EQ(refused.context().GetServerTrailingMetadata().count("retry-after-ms"), 1U);
}

TEST(EncodeTest, DrainRunsWhatWaits) {
  ServerConfig config = TestConfigWithEncoder();
  config.drain.grace = std::chrono::hours(1);
  TestServer server(config);
  EncodeStream stream = StartEncode(server.inference(), EncodeOf("alone"));
  ASSERT_TRUE(stream.Next());
  std::thread drain([&server] { server.server().Drain(); });
  EXPECT_TRUE(stream.Finish().ok());  // though the batch's delay is not over
  EXPECT_EQ(Values(stream, 5), Expected("alone"));
  drain.join();
}

TEST(EncodeTest, AFailedStepShowsTheRequestsIdAndNoInternals) {
  TestServer server(Eager());
  server.encoder_control().FailNext(absl::InternalError("secret pointer 0xdead"));
  EncodeStream stream = StartEncode(server.inference(), EncodeOf("doomed"));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), testing::StartsWith("internal error; request id "));
  EncodeStream next = StartEncode(server.inference(), EncodeOf("next"));
  EXPECT_TRUE(next.Finish().ok());
}

TEST(EncodeTest, TheModelServiceTellsTheTask) {
  TestServer server(TestConfigWithEncoder());
  grpc::ClientContext context;
  v1::ListResponse list;
  ASSERT_TRUE(server.models().List(&context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 2);
  EXPECT_EQ(list.models(0).task(), v1::TASK_GENERATE);
  EXPECT_EQ(list.models(0).vector_width(), 0U);
  EXPECT_EQ(list.models(1).task(), v1::TASK_ENCODE);
  EXPECT_EQ(list.models(1).vector_width(), 3U);
  EXPECT_EQ(list.models(1).slots(), 4U);
}

}  // namespace
}  // namespace aft::server
