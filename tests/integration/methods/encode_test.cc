// Encode over real gRPC, with a fake encoder and a fake language model.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/pooling.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

v1::EncodeRequest EncodeOf(const std::string& text) {
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text(text);
  return request;
}

// All values of a stream.
std::vector<float> Values(const EncodeStream& stream, size_t tokens, uint32_t width = 3) {
  EXPECT_EQ(stream.events.front().started().model(), "encoder");
  EXPECT_EQ(stream.events.front().started().tokens(), tokens);
  EXPECT_EQ(stream.events.front().started().width(), width);
  return ValuesOf(stream);
}

std::vector<float> ExpectedVector(const std::string& text,
                                  FakeEncoderRunner::Options options = {}) {
  return FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode(text));
}

TEST(EncodeTest, StreamsAVectorForEachToken) {
  TestServer server(TestConfigWithEncoder());
  EncodeStream stream(server.inference(), EncodeOf("hello"));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Values(stream, 5), ExpectedVector("hello"));
  EXPECT_EQ(stream.events.back().finished().batch_rows(), 1U);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Encode", "encoder")), 1);
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 5);
  EXPECT_EQ(server.Metric("aft_step_rows_count{model=\"encoder\"}"), 1);
  EXPECT_EQ(server.Metric("aft_queue_seconds_count{model=\"encoder\"}"), 1);
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
  EXPECT_EQ(Values(stream, text.size(), 700), ExpectedVector(text, options));
}

// ---- Encode of a language model

std::vector<float> HiddenOf(const std::string& text) {
  return FakeModelRunner::Hidden(*FakeTokenizer().Encode(text));
}

std::vector<float> AllValues(TestServer& server, const std::string& text, v1::Pooling pooling,
                             bool normalize = false) {
  v1::EncodeRequest request = EncodeOf(text);
  request.set_model("fake");
  request.set_pooling(pooling);
  request.set_normalize(normalize);
  EncodeStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream.events.front().started().width(), 3U);
  EXPECT_EQ(stream.events.back().finished().batch_rows(), 1U);
  return ValuesOf(stream);
}

TEST(EncodeTest, ALanguageModelGivesItsHiddenVectors) {
  TestServer server(TestConfigWithMetrics());
  const std::string text(200, 'x');  // read in four steps
  const std::vector<float> hidden = HiddenOf(text);
  EXPECT_EQ(AllValues(server, text, v1::POOLING_UNSPECIFIED), hidden);
  for (const auto& [pooling, expected] :
       {std::pair(v1::POOLING_MEAN, Pooling::kMean), std::pair(v1::POOLING_FIRST, Pooling::kFirst),
        std::pair(v1::POOLING_LAST, Pooling::kLast),
        std::pair(v1::POOLING_MODEL, Pooling::kLast)}) {
    EXPECT_EQ(AllValues(server, text, pooling), Pool(hidden, 3, expected, false)) << pooling;
  }
  EXPECT_EQ(AllValues(server, text, v1::POOLING_MEAN, /*normalize=*/true),
            Pool(hidden, 3, Pooling::kMean, true));
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"fake\"}"), 1200);
}

TEST(EncodeTest, ALanguageModelTakesTextsAsLongAsItsLength) {
  FakeModelRunner::Options options;
  options.max_seq_len = 70;
  ServerConfig config = TestConfig();
  config.models[0].max_batch_tokens = 40;  // a limit for encoders only
  TestServer server(config, options);
  EXPECT_EQ(AllValues(server, std::string(70, 'x'), v1::POOLING_UNSPECIFIED).size(), 210U);
  v1::EncodeRequest request;
  request.add_texts()->set_text("short");
  request.add_texts()->set_text(std::string(71, 'x'));
  EncodeStream stream(server.inference(), request);
  EXPECT_THAT(stream.Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts[1].text: must have at most 70 tokens (the model's max_seq_len), got "
                       "71"));
}

// Only the requested vectors take memory: one for a pooled text, all for any other text.
TEST(EncodeTest, ALanguageModelsAnswerIsChargedBeforeAnyWork) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 60'000;
  TestServer server(config);
  const std::string text(4000, 'x');
  EXPECT_EQ(AllValues(server, text, v1::POOLING_MEAN).size(), 3U);
  server.WaitForMetric(kMemoryUsed, 0);
  v1::EncodeRequest request = EncodeOf(text);
  request.set_model("fake");
  EncodeStream stream(server.inference(), request);
  EXPECT_THAT(stream.Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory_bytes")));
}

}  // namespace
}  // namespace aft::server
