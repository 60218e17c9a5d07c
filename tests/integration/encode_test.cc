// Encode over real gRPC, with a fake encoder.
#include <chrono>
#include <deque>
#include <random>
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
  ServerConfig config = TestConfigWithEncoder();
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  EncodeStream stream(server.inference(), EncodeOf("hello"));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Values(stream, 5), Expected("hello"));
  EXPECT_EQ(stream.events.back().finished().batch_rows(), 1U);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Encode", "encoder")), 1);
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 5);
  EXPECT_EQ(server.Metric("aft_step_rows_count{model=\"encoder\"}"), 1);
  EXPECT_EQ(server.Metric("aft_queue_seconds_count{model=\"encoder\"}"), 1);
}

TEST(EncodeTest, OneStepServesManyRequests) {
  ServerConfig config = TestConfigWithEncoder();
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  server.encoder_control().Hold();
  EncodeStream first(server.inference(), EncodeOf("first"));
  server.encoder_control().WaitUntilBlocked();
  // What comes while the model is busy is the next batch, and the one after that.
  std::deque<EncodeStream> streams;
  std::vector<std::string> texts;
  for (size_t i = 0; i < 8; ++i) {
    texts.push_back(std::string(1 + i, static_cast<char>('a' + i)));
    streams.emplace_back(server.inference(), EncodeOf(texts.back()));
    ASSERT_TRUE(streams.back().Next());  // accepted
  }
  server.encoder_control().Resume();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_EQ(first.events.back().finished().batch_rows(), 1U);
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(streams[i].Finish().ok());
    EXPECT_EQ(Values(streams[i], texts[i].size()), Expected(texts[i]));
    EXPECT_EQ(streams[i].events.back().finished().batch_rows(), 4U);
  }
  EXPECT_EQ(server.encoder_control().batches().size(), 3U);
  EXPECT_EQ(server.Metric("aft_step_rows_sum{model=\"encoder\"}"), 9);
  EXPECT_EQ(server.Metric("aft_step_tokens_sum{model=\"encoder\"}"), 5 + 36);
}

TEST(EncodeTest, RequestsThatGatherGetTheirOwnVectors) {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].max_batch_delay = std::chrono::seconds(1);
  TestServer server(config);
  std::deque<EncodeStream> streams;
  for (int i = 0; i < 4; ++i) {
    streams.emplace_back(server.inference(), EncodeOf("together"));
  }
  for (EncodeStream& stream : streams) {
    EXPECT_TRUE(stream.Finish().ok());
    EXPECT_EQ(Values(stream, 8), Expected("together"));
  }
}

TEST(EncodeTest, LongAnswersComeInMessagesOfBoundedSize) {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].max_batch_tokens = 2000;
  FakeEncoderRunner::Options options;
  options.width = 700;
  TestServer server(config, {}, options);
  const std::string text(2000, 'x');
  EncodeStream stream(server.inference(), EncodeOf(text));
  ASSERT_TRUE(stream.Finish().ok());  // gRPC's default limit of a message is 4 MiB; this is 5.6 MB
  EXPECT_GT(stream.events.size(), 150U);
  for (const v1::EncodeResponse& event : stream.events) {
    EXPECT_LT(event.ByteSizeLong(), size_t{34} << 10);
  }
  EXPECT_EQ(Values(stream, text.size(), 700), Expected(text, options));
}

TEST(EncodeTest, PooledAnswersAreOneVector) {
  TestServer server(TestConfigWithEncoder());
  const auto pooled = [&](v1::Pooling pooling, bool normalize) {
    v1::EncodeRequest request = EncodeOf("\x0a\x14");
    request.set_pooling(pooling);
    request.set_normalize(normalize);
    EncodeStream stream(server.inference(), request);
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
  ServerConfig config = TestConfigWithEncoder();
  config.limits.max_prompt_bytes = 100;
  TestServer server(config);
  const auto refusal = [&](const v1::EncodeRequest& request) {
    EncodeStream stream(server.inference(), request);
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
  EncodeStream longest(server.inference(), EncodeOf(std::string(64, 'x')));
  EXPECT_TRUE(longest.Finish().ok());
}

TEST(EncodeTest, ALanguageModelDoesNotEncode) {
  TestServer server(TestConfigWithEncoder());
  v1::EncodeRequest request = EncodeOf("x");
  request.set_model("fake");
  EncodeStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(),
            "model \"fake\" is a language model: it serves Generate and Score, not Encode");
}

TEST(EncodeTest, ManyClientsThatComeAndGoLeaveNothingBehind) {
  ServerConfig config = TestConfigWithEncoder();
  config.metrics_address = "127.0.0.1:0";
  config.limits.max_queued_requests = 1000;
  TestServer server(config);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&server, t] {
      std::mt19937 random(t + 1);
      for (int i = 0; i < 20; ++i) {
        const std::string text(1 + random() % 64, static_cast<char>('a' + t));
        EncodeStream stream(server.inference(), EncodeOf(text));
        const bool leave = random() % 2 == 0;
        if (leave) stream.context().TryCancel();
        const grpc::Status status = stream.Finish();
        if (leave) continue;
        EXPECT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(Values(stream, text.size()), Expected(text));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.WaitForMetric("aft_requests_waiting{model=\"encoder\"}", 0);
  server.WaitForMetric("aft_requests_running{model=\"encoder\"}", 0);
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
