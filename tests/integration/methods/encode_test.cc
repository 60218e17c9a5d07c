// Encode over real gRPC, with a fake encoder.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

v1::EncodeRequest EncodeOf(const std::string& text) {
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text(text);
  return request;
}

// All the values.
std::vector<float> Values(const EncodeStream& stream, size_t tokens, uint32_t width = 3) {
  EXPECT_EQ(stream.events.front().started().model(), "encoder");
  EXPECT_EQ(stream.events.front().started().tokens(), tokens);
  EXPECT_EQ(stream.events.front().started().width(), width);
  std::vector<float> values;
  for (const v1::EncodeResponse& event : stream.events) {
    values.insert(values.end(), event.vectors().values().begin(), event.vectors().values().end());
  }
  return values;
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

}  // namespace
}  // namespace aft::server
