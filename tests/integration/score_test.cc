// Score over real gRPC, with a fake model.
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

v1::ScoreRequest ScoreOf(const std::string& text) {
  v1::ScoreRequest request;
  request.set_model("fake");
  request.set_raw(text);
  return request;
}

// One Started, chunks without a gap, one Finished; their scores are what the model gives the text
// when it runs alone.
void ExpectScores(const ScoreStream& stream, const std::string& text) {
  const std::vector<SampledToken> expected =
      FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
  ASSERT_GE(stream.events.size(), 2U);
  ASSERT_TRUE(stream.events.front().has_started());
  EXPECT_EQ(stream.events.front().started().model(), "fake");
  EXPECT_EQ(stream.events.front().started().tokens(), text.size());
  size_t next = 0;
  double sum = 0;
  for (size_t e = 1; e + 1 < stream.events.size(); ++e) {
    ASSERT_TRUE(stream.events[e].has_chunk());
    const v1::ScoreChunk& chunk = stream.events[e].chunk();
    ASSERT_EQ(chunk.first_index(), next + 1);
    ASSERT_EQ(chunk.logprobs_size(), chunk.token_ids_size());
    for (int i = 0; i < chunk.token_ids_size(); ++i, ++next) {
      ASSERT_LT(next, expected.size());
      EXPECT_EQ(chunk.token_ids(i), static_cast<uint32_t>(expected[next].id));
      EXPECT_EQ(chunk.logprobs(i).logprob(), expected[next].logprob);
      sum += expected[next].logprob;
    }
  }
  EXPECT_EQ(next, expected.size());
  ASSERT_TRUE(stream.events.back().has_finished());
  const v1::ScoreFinished& finished = stream.events.back().finished();
  EXPECT_EQ(finished.scored_tokens(), text.size() - 1);
  EXPECT_EQ(finished.scored_bytes(), text.size() - 1);
  EXPECT_EQ(finished.logprob(), sum);
  const double perplexity =
      text.size() == 1 ? 0 : std::exp(-sum / static_cast<double>(text.size() - 1));
  EXPECT_DOUBLE_EQ(finished.perplexity(), perplexity);
  EXPECT_GE(finished.timings().total_us(), finished.timings().first_token_us());
}

std::string Text(size_t size, char first = 'a') {
  std::string text(size, first);
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(first + static_cast<char>(i % 13));
  return text;
}

TEST(ScoreTest, StreamsTheScoreOfEveryTokenButTheFirst) {
  TestServer server(TestConfigWithMetrics());
  const std::string text = Text(300);  // five steps
  ScoreStream stream(server.inference(), ScoreOf(text));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectScores(stream, text);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Score")), 1);
  EXPECT_EQ(server.Metric("aft_scored_tokens_total{model=\"fake\"}"), 299);
  EXPECT_EQ(server.Metric("aft_request_finished_total{model=\"fake\",reason=\"done\"}"), 1);
}

TEST(ScoreTest, ATextOfOneTokenHasNoChunk) {
  TestServer server;
  ScoreStream stream(server.inference(), ScoreOf("x"));
  ASSERT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.events.size(), 2U);
  ExpectScores(stream, "x");
}

TEST(ScoreTest, ChunksComeAsStepsFinish) {
  TestServer server;
  server.control().Hold();
  ScoreStream stream(server.inference(), ScoreOf(Text(100)));
  ASSERT_TRUE(stream.Next());
  server.control().AllowSteps(1);
  ASSERT_TRUE(stream.Next());  // while the second step is held
  EXPECT_EQ(stream.events.back().chunk().token_ids_size(), 64);
  server.control().Resume();
  ASSERT_TRUE(stream.Finish().ok());
  ExpectScores(stream, Text(100));
}

TEST(ScoreTest, AlternativesComeWhenTheyAreAskedFor) {
  TestServer server;
  v1::ScoreRequest request = ScoreOf("abc");
  request.mutable_output()->set_top_logprobs(2);
  ScoreStream stream(server.inference(), request);
  ASSERT_TRUE(stream.Finish().ok());
  ExpectScores(stream, "abc");
  for (const v1::TokenLogprobs& token : stream.events[1].chunk().logprobs()) {
    ASSERT_EQ(token.top_size(), 2);
    EXPECT_EQ(token.top(1).token_id(), 1U);
  }
}

TEST(ScoreTest, ManyScoresAndGenerationsAtOnceEqualSingleResults) {
  ServerConfig config = TestConfig();
  config.limits.max_queued_requests = 1000;
  TestServer server(config);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&server, t] {
      for (int i = 0; i < 8; ++i) {
        const std::string text =
            Text(static_cast<size_t>(1 + 37 * i + t), static_cast<char>('a' + t));
        if (t % 2 == 0) {
          ScoreStream stream(server.inference(), ScoreOf(text));
          EXPECT_TRUE(stream.Finish().ok());
          ExpectScores(stream, text);
        } else {
          const v1::GenerateRequest request = Request(text, 40);
          GenerateStream stream(server.inference(), request);
          EXPECT_TRUE(stream.Finish().ok());
          EXPECT_EQ(stream.tokens, Expected(request));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ScoreTest, BadFieldsAreNamed) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_prompt_bytes = 1000;
  config.limits.max_prompt_tokens = 900;
  FakeModelRunner::Options options;
  options.max_seq_len = 500;
  TestServer server(config, options);
  const auto refusal = [&](const v1::ScoreRequest& request) {
    ScoreStream stream(server.inference(), request);
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(stream.events.empty());
    return status.error_message();
  };
  EXPECT_EQ(refusal({}), "text_to_score: one of text, raw, tokens must be set");
  EXPECT_EQ(refusal(ScoreOf("")), "raw: must not be empty");
  EXPECT_EQ(refusal(ScoreOf(Text(1001))), "raw: must have at most 1000 bytes, got 1001");
  EXPECT_EQ(refusal(ScoreOf(Text(501))),
            "raw: must have at most 500 tokens (the model's max_seq_len), got 501");
  v1::ScoreRequest request;
  request.mutable_tokens()->add_ids(1);
  request.mutable_tokens()->add_ids(257);
  EXPECT_EQ(refusal(request),
            "tokens.ids[1]: must be below 257, the size of the vocabulary, got 257");
  request = ScoreOf("x");
  request.mutable_output()->set_top_logprobs(21);
  EXPECT_EQ(refusal(request), "output.top_logprobs: must be in [0, 20], got 21");
  request = ScoreOf("x");
  request.set_text("broken \xff");
  EXPECT_EQ(refusal(request),
            "request: is no aft.v1.ScoreRequest; its strings must be valid UTF-8");
  EXPECT_EQ(server.Metric(RequestsTotal("INVALID_ARGUMENT", "Score")), 6);

  ScoreStream longest(server.inference(), ScoreOf(Text(500)));
  EXPECT_TRUE(longest.Finish().ok());
  ExpectScores(longest, Text(500));
}

TEST(ScoreTest, CancelFreesTheSlot) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  TestServer server(config);
  server.control().Hold();
  ScoreStream stream(server.inference(), ScoreOf(Text(1'000'000)));
  ASSERT_TRUE(stream.Next());
  server.control().WaitUntilBlocked();
  stream.context().TryCancel();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  // Step by step, so that the text does not end before the server has heard of it.
  const std::string cancelled = RequestsTotal("CANCELLED", "Score");
  while (server.Metric(cancelled) == 0) server.control().AllowSteps(1);
  server.control().Resume();
  ExpectServes(server);
}

TEST(ScoreTest, AClientThatDoesNotReadIsEnded) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_stream_buffer_bytes = 4096;
  TestServer server(config);
  const auto stub = server.StubWithASmallWindow();
  v1::ScoreRequest request = ScoreOf(Text(100'000));
  request.mutable_output()->set_top_logprobs(20);
  ScoreStream stalled(*stub, request);
  ASSERT_TRUE(stalled.Next());
  server.WaitForMetric("aft_request_finished_total{model=\"fake\",reason=\"slow_client\"}", 1);
  EXPECT_EQ(stalled.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes(server);
}

TEST(ScoreTest, AnEncoderDoesNotScoreOrGenerate) {
  TestServer server(TestConfigWithEncoder());
  v1::ScoreRequest request = ScoreOf("x");
  request.set_model("encoder");
  ScoreStream score(server.inference(), request);
  grpc::Status status = score.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "model \"encoder\" is an encoder: it serves Encode, not Score");
  v1::GenerateRequest generation = Request("x", 1);
  generation.set_model("encoder");
  GenerateStream generate(server.inference(), generation);
  status = generate.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("not Generate"));
}

}  // namespace
}  // namespace aft::server
