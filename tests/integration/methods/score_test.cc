// Score over real gRPC, with a fake model.
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

v1::ScoreRequest ScoreOf(const std::string& text) {
  v1::ScoreRequest request;
  request.set_model("fake");
  request.set_raw(text);
  return request;
}

// The scores must equal those of the model for this text alone.
void ExpectScores(const ScoreStream& stream, const std::string& text) {
  const std::vector<SampledToken> expected =
      FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
  ASSERT_GE(stream.events.size(), 2U);
  EXPECT_EQ(stream.events.front().started().model(), "fake");
  EXPECT_EQ(stream.events.front().started().tokens(), text.size());
  size_t next = 0;
  double sum = 0;
  for (const v1::ScoreResponse& event : stream.events) {
    for (int i = 0; i < event.chunk().token_ids_size(); ++i, ++next) {
      ASSERT_LT(next, expected.size());
      EXPECT_EQ(event.chunk().token_ids(i), static_cast<uint32_t>(expected[next].id));
      EXPECT_EQ(event.chunk().logprobs(i).logprob(), expected[next].logprob);
      sum += expected[next].logprob;
    }
  }
  EXPECT_EQ(next, expected.size());
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
  const std::string text = Text(300);  // read in five steps
  ScoreStream stream(server.inference(), ScoreOf(text));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectScores(stream, text);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Score")), 1);
  EXPECT_EQ(server.Metric("aft_scored_tokens_total{model=\"fake\"}"), 299);
  EXPECT_EQ(server.Metric("aft_request_finished_total{model=\"fake\",reason=\"done\"}"), 1);
}

TEST(ScoreTest, ChunksComeAsStepsFinish) {
  TestServer server;
  server.control().Hold();
  ScoreStream stream(server.inference(), ScoreOf(Text(100)));
  ASSERT_TRUE(stream.Next());
  server.control().AllowSteps(1);
  ASSERT_TRUE(stream.Next());  // it comes while the second step is held
  EXPECT_EQ(stream.events.back().chunk().token_ids_size(), 64);
  server.control().Resume();
  ASSERT_TRUE(stream.Finish().ok());
  ExpectScores(stream, Text(100));
}

constexpr char kExactScores[] =
    "aft_streams_resumed_total{exact=\"yes\",from=\"text\",model=\"fake\"}";
constexpr char kOtherScores[] =
    "aft_streams_resumed_total{exact=\"no\",from=\"text\",model=\"fake\"}";

// The request of a client that already has the first `count` scores.
v1::ScoreRequest Resumed(v1::ScoreRequest request, const ScoreStream& whole, uint32_t count) {
  v1::ScoreResume& resume = *request.mutable_resume();
  resume.set_fingerprint(whole.events.front().started().fingerprint());
  resume.set_numerics(whole.events.front().started().numerics());
  resume.set_scores(count);
  double logprob = 0;
  uint32_t next = 0;
  for (const v1::ScoreResponse& event : whole.events) {
    for (const v1::TokenLogprobs& score : event.chunk().logprobs()) {
      if (next++ < count) logprob += score.logprob();
    }
  }
  resume.set_logprob(logprob);
  return request;
}

TEST(ScoreTest, AScoringResumesAtAnotherServerAfterAnyScore) {
  FakeModelRunner::Options options;
  options.fingerprint = 0xABCD;
  TestServer server(TestConfig(), options);
  TestServer other(TestConfigWithMetrics(), options);
  const std::string text = Text(150);
  ScoreStream whole(server.inference(), ScoreOf(text));
  ASSERT_TRUE(whole.Finish().ok());
  EXPECT_EQ(whole.events.front().started().fingerprint(), 0xABCDU);
  EXPECT_EQ(whole.events.front().started().numerics(), "fake");
  EXPECT_FALSE(whole.events.front().started().exact());
  const std::vector<SampledToken> expected =
      FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
  const uint32_t cuts[] = {0, 1, 63, 64, 65, 148, 149};
  for (const uint32_t cut : cuts) {
    SCOPED_TRACE(cut);
    ScoreStream rest(other.inference(), Resumed(ScoreOf(text), whole, cut));
    ASSERT_TRUE(rest.Finish().ok());
    EXPECT_TRUE(rest.events.front().started().exact());
    EXPECT_EQ(rest.events.front().started().tokens(), 150U);
    uint32_t next = cut;
    for (const v1::ScoreResponse& event : rest.events) {
      EXPECT_EQ(event.chunk().first_index(), event.has_chunk() ? next + 1 : 0);
      for (const v1::TokenLogprobs& score : event.chunk().logprobs()) {
        EXPECT_EQ(score.logprob(), expected[next++].logprob);
      }
    }
    EXPECT_EQ(next, 149U);
    const v1::ScoreFinished& finished = rest.events.back().finished();
    const v1::ScoreFinished& undisturbed = whole.events.back().finished();
    EXPECT_EQ(finished.scored_tokens(), undisturbed.scored_tokens());
    EXPECT_EQ(finished.scored_bytes(), undisturbed.scored_bytes());
    EXPECT_EQ(finished.logprob(), undisturbed.logprob());
    EXPECT_EQ(finished.perplexity(), undisturbed.perplexity());
  }
  EXPECT_EQ(other.Metric(kExactScores), 7);
  EXPECT_EQ(other.Metric(kOtherScores), 0);
  // A request is charged only for the tokens that it reads. The one that had all scores reads none.
  EXPECT_EQ(other.Metric("aft_prompt_tokens_total{model=\"fake\"}"), 6 * 150);
  EXPECT_EQ(other.Metric("aft_client_tokens_total{client=\"other\"}"), 6 * 150);
  EXPECT_EQ(other.Metric("aft_scored_tokens_total{model=\"fake\"}"), 149 + 148 + 86 + 85 + 84 + 1);
}

TEST(ScoreTest, OnlyTheSameBitsAreExact) {
  TestServer server;
  ScoreStream whole(server.inference(), ScoreOf(Text(20)));
  ASSERT_TRUE(whole.Finish().ok());
  const auto exact = [&](uint32_t scores, const std::string& numerics) {
    v1::ScoreRequest request = Resumed(ScoreOf(Text(20)), whole, scores);
    request.mutable_resume()->set_numerics(numerics);
    ScoreStream rest(server.inference(), request);
    EXPECT_TRUE(rest.Finish().ok());
    return rest.events.front().started().exact();
  };
  EXPECT_TRUE(exact(5, "fake"));
  EXPECT_FALSE(exact(5, "AVX2"));
  EXPECT_FALSE(exact(5, ""));
  EXPECT_TRUE(exact(0, "AVX2"));  // this server computes all of it
  FakeModelRunner::Options options;
  options.numerics = "";
  TestServer no_promise(TestConfigWithMetrics(), options);
  ScoreStream rest(no_promise.inference(), Resumed(ScoreOf(Text(20)), whole, 5));
  EXPECT_TRUE(rest.Finish().ok());
  EXPECT_FALSE(rest.events.front().started().exact());
  EXPECT_EQ(no_promise.Metric(kOtherScores), 1);
}

TEST(ScoreTest, EveryFieldOfAResumeIsCheckedByName) {
  TestServer server(TestConfigWithMetrics());
  ScoreStream whole(server.inference(), ScoreOf(Text(20)));
  ASSERT_TRUE(whole.Finish().ok());
  const v1::ScoreRequest good = Resumed(ScoreOf(Text(20)), whole, 5);
  const auto refused = [&](const auto& change) {
    v1::ScoreRequest bad = good;
    change(*bad.mutable_resume());
    ScoreStream stream(server.inference(), bad);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(stream.events.empty());
    return status;
  };
  const auto expect_bad = [&](const grpc::Status& status, const std::string& message) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find(message), std::string::npos) << status.error_message();
  };
  for (const uint32_t scores : {20U, 4'000'000'000U, ~0U}) {
    expect_bad(refused([&](auto& bad) { bad.set_scores(scores); }),
               "resume.scores: " + std::to_string(scores) + ", but the text has 19");
  }
  for (const double logprob : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    expect_bad(refused([&](auto& bad) { bad.set_logprob(logprob); }), "resume.logprob: must be");
  }
  expect_bad(refused([](auto& bad) { bad.set_scores(0); }), "resume.logprob: must be");
  expect_bad(refused([](auto& bad) { bad.set_numerics(std::string(129, 'x')); }),
             "resume.numerics");
  for (const uint64_t fingerprint : {uint64_t{0}, uint64_t{2}}) {
    const grpc::Status status = refused([&](auto& bad) { bad.set_fingerprint(fingerprint); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("resume.fingerprint"), std::string::npos);
  }
  EXPECT_EQ(server.Metric(kExactScores), 0);
  ExpectServes(server);
}

TEST(ScoreTest, AContextIsReadOnceAndNotScored) {
  TestServer server(TestConfigWithMetrics());
  const std::string context = Text(150);
  const auto read = [&] { return server.Metric("aft_prompt_tokens_total{model=\"fake\"}"); };
  for (const std::string ending : {"", "first", "a second", "third"}) {
    SCOPED_TRACE(ending);
    const std::string text = context + "z" + ending;
    v1::ScoreRequest request = ScoreOf(text);
    ScoreStream whole(server.inference(), request);
    ASSERT_TRUE(whole.Finish().ok());
    ExpectScores(whole, text);
    EXPECT_EQ(whole.events.back().finished().usage().cached_tokens(), 0U);
    EXPECT_EQ(whole.events.back().finished().usage().cache_miss(), v1::CACHE_MISS_UNSPECIFIED);

    request.set_context_tokens(150);
    const double before = read();
    ScoreStream behind(server.inference(), request);
    const grpc::Status status = behind.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(behind.events.front().started().tokens(), text.size());
    const std::vector<SampledToken> expected =
        FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
    uint32_t next = 150;
    double sum = 0;
    for (const v1::ScoreResponse& event : behind.events) {
      EXPECT_EQ(event.chunk().first_index(), event.has_chunk() ? next : 0);
      for (const v1::TokenLogprobs& score : event.chunk().logprobs()) {
        EXPECT_EQ(score.logprob(), expected[next++ - 1].logprob);
        sum += score.logprob();
      }
    }
    const v1::ScoreFinished& finished = behind.events.back().finished();
    const bool cold = ending.empty();
    EXPECT_EQ(next, text.size());
    EXPECT_EQ(finished.scored_tokens(), text.size() - 150);
    EXPECT_EQ(finished.scored_bytes(), text.size() - 150);
    EXPECT_EQ(finished.logprob(), sum);
    EXPECT_EQ(finished.usage().prompt_tokens(), text.size());
    EXPECT_EQ(finished.usage().scored_tokens(), text.size() - 150);
    EXPECT_EQ(finished.usage().cached_tokens(), cold ? 0U : 149U);
    EXPECT_EQ(finished.usage().cache_miss(),
              cold ? v1::CACHE_MISS_COLD : v1::CACHE_MISS_UNSPECIFIED);
    EXPECT_EQ(read() - before, static_cast<double>(cold ? text.size() : text.size() - 149));
  }
  EXPECT_EQ(server.Metric("aft_prefix_cache_hits_total{model=\"fake\"}"), 3);
}

TEST(ScoreTest, AScoringAfterAContextResumesAtAnotherServer) {
  FakeModelRunner::Options options;
  options.fingerprint = 0xABCD;
  TestServer server(TestConfig(), options);
  TestServer other(TestConfig(), options);
  v1::ScoreRequest request = ScoreOf(Text(150));
  request.set_context_tokens(100);
  ScoreStream whole(server.inference(), request);
  ASSERT_TRUE(whole.Finish().ok());
  for (const uint32_t cut : {0U, 1U, 20U, 49U, 50U}) {
    SCOPED_TRACE(cut);
    ScoreStream rest(other.inference(), Resumed(request, whole, cut));
    ASSERT_TRUE(rest.Finish().ok());
    uint32_t next = 100 + cut;
    for (const v1::ScoreResponse& event : rest.events) {
      EXPECT_EQ(event.chunk().first_index(), event.has_chunk() ? next : 0);
      next += static_cast<uint32_t>(event.chunk().token_ids_size());
    }
    EXPECT_EQ(next, 150U);
    EXPECT_EQ(rest.events.back().finished().logprob(), whole.events.back().finished().logprob());
    EXPECT_EQ(rest.events.back().finished().scored_tokens(), 50U);
  }
}

TEST(ScoreTest, ATooLongContextIsRefusedByName) {
  TestServer server;
  for (const uint32_t context : {5U, ~0U}) {
    v1::ScoreRequest request = ScoreOf(Text(5));
    request.set_context_tokens(context);
    ScoreStream stream(server.inference(), request);
    EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          "context_tokens: must be less than the text's tokens (5)"
                                          ", got " +
                                              std::to_string(context)));
    EXPECT_TRUE(stream.events.empty());
  }
  ExpectServes(server);
}

TEST(ScoreTest, ADrainEndsOnlyResumableScorings) {
  ServerConfig config = TestConfigWithMetrics();
  config.drain.grace = std::chrono::hours(1);
  TestServer server(config);
  server.control().Hold();
  const std::string text = Text(500);
  v1::ScoreRequest request = ScoreOf(text);
  ScoreStream waits(server.inference(), request);
  ASSERT_TRUE(waits.Next());  // it has a slot
  request.set_resumable(true);
  ScoreStream leaves(server.inference(), request);
  server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 1);
  server.control().RunSteps(1);
  EXPECT_EQ(server.Metric("aft_requests_running{model=\"fake\"}"), 2);
  std::thread drain([&] { EXPECT_TRUE(server.server().Drain()); });
  server.WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  server.control().Resume();
  EXPECT_EQ(leaves.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(leaves.events.size(), 8U);
  EXPECT_TRUE(waits.Finish().ok());
  ExpectScores(waits, text);
  drain.join();

  TestServer next;
  uint32_t count = 0;
  for (const v1::ScoreResponse& event : leaves.events) {
    count += static_cast<uint32_t>(event.chunk().token_ids_size());
  }
  ScoreStream rest(next.inference(), Resumed(ScoreOf(text), leaves, count));
  ASSERT_TRUE(rest.Finish().ok());
  EXPECT_EQ(rest.events.back().finished().logprob(), waits.events.back().finished().logprob());
}

}  // namespace
}  // namespace aft::server
