// ModelInfer with an encoder, over real gRPC. The fake encoder's vectors have width 3.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/short_memory.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr size_t kWidth = 3;

InferBuilder Encoder() { return InferBuilder("encoder"); }

std::vector<float> Vectors(const std::vector<TokenId>& text) {
  return FakeEncoderRunner::Vectors({}, text);
}

std::vector<float> NativePooled(OipServer& server, const std::string& text, v1::Pooling pooling,
                                bool normalize = false) {
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text(text);
  request.set_pooling(pooling);
  request.set_normalize(normalize);
  EncodeStream stream(server.inference(), request);
  EXPECT_TRUE(stream.Finish().ok());
  return ValuesOf(stream);
}

TEST(OipEncodeTest, AMaskMarksPadding) {
  OipServer server(TestConfigWithEncoder());
  const auto answer = server.Infer(
      Encoder()
          .Raw("input_ids", "INT64", {2, 4}, RawOf<int64_t>({1, 2, 999, -5, 3, 4, 5, 6}))
          .Raw("attention_mask", "INT64", {2, 4}, RawOf<int64_t>({1, 1, 0, 0, 1, 1, 1, 1}))
          .Id("7")
          .request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(OutputNames(answer.response), ElementsAre("last_hidden_state", "embedding"));
  EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(2, 4, 3));
  EXPECT_THAT(ShapeOf(answer.response, "embedding"), ElementsAre(2, 3));
  std::vector<float> expected = Vectors({1, 2});
  const std::vector<float> mean = {(expected[0] + expected[3]) / 2, (expected[1] + expected[4]) / 2,
                                   (expected[2] + expected[5]) / 2};
  expected.resize(4 * kWidth, 0);
  const std::vector<float> second = Vectors({3, 4, 5, 6});
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(Numbers<float>(answer.response, "last_hidden_state"), expected);
  const auto embedding = Numbers<float>(answer.response, "embedding");
  EXPECT_EQ(std::vector<float>(embedding.begin(), embedding.begin() + 3), mean);
  EXPECT_EQ(answer.response.id(), "7");
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "ModelInfer", "encoder")), 1);
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 6);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipEncodeTest, MasksMayBeOfEveryIntegerAndOfBooleans) {
  OipServer server(TestConfigWithEncoder());
  std::vector<InferBuilder> builders(3, Encoder());
  builders[0].Raw("attention_mask", "INT32", {2}, RawOf<int32_t>({1, 0}));
  builders[1].Raw("attention_mask", "BOOL", {2}, std::string("\1\0", 2));
  builders[2].Raw("attention_mask", "INT64", {2}, RawOf<int64_t>({1, 0}));
  for (InferBuilder& builder : builders) {
    const auto answer = server.Infer(builder.Ids({9, 8}).request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    std::vector<float> expected = Vectors({9});
    expected.resize(2 * kWidth, 0);
    EXPECT_EQ(Numbers<float>(answer.response, "last_hidden_state"), expected);
    EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(2, 3));  // no batch
    EXPECT_THAT(ShapeOf(answer.response, "embedding"), ElementsAre(3));
  }
}

TEST(OipEncodeTest, TextsArePaddedToTheLongest) {
  OipServer server(TestConfigWithEncoder());
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {2, 1}}) {
    const auto answer = server.Infer(
        Encoder().Raw("text_input", "BYTES", shape, RawText("ab") + RawText("c")).request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    std::vector<float> expected = Vectors({'a', 'b'});
    const std::vector<float> second = Vectors({'c'});
    expected.insert(expected.end(), second.begin(), second.end());
    expected.resize(4 * kWidth, 0);
    EXPECT_EQ(Numbers<float>(answer.response, "last_hidden_state"), expected);
    EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(2, 2, 3));
  }
}

TEST(OipEncodeTest, PoolsAsEncodeDoes) {
  OipServer server(TestConfigWithEncoder());
  const std::pair<const char*, v1::Pooling> poolings[] = {
      {"mean", v1::POOLING_MEAN}, {"first", v1::POOLING_FIRST}, {"last", v1::POOLING_LAST}};
  for (const auto& [name, pooling] : poolings) {
    for (const bool normalize : {false, true}) {
      for (const bool alone : {false, true}) {  // pooled by the engine if alone
        InferBuilder builder = Encoder().Text("text_input", "hello");
        builder.Parameter("pooling").set_string_param(name);
        builder.Parameter("normalize").set_bool_param(normalize);
        if (alone) builder.Output("embedding");
        const auto answer = server.Infer(builder.request());
        ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
        EXPECT_EQ(answer.response.outputs_size(), alone ? 1 : 2);
        EXPECT_EQ(Numbers<float>(answer.response, "embedding"),
                  NativePooled(server, "hello", pooling, normalize));
      }
    }
  }
}

TEST(OipEncodeTest, PoolsAsTheModelDoesByDefault) {
  FakeEncoderRunner::Options options;
  options.pooling = Pooling::kLast;
  options.normalize = true;
  OipServer server(TestConfigWithEncoder(), {}, options);
  const auto embedding = [&](InferBuilder& builder) {
    const auto answer = server.Infer(builder.request());
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return Numbers<float>(answer.response, "embedding");
  };
  InferBuilder builder = Encoder().Text("text_input", "hello");
  const std::vector<float> own = NativePooled(server, "hello", v1::POOLING_LAST, true);
  EXPECT_EQ(embedding(builder), own);
  EXPECT_EQ(NativePooled(server, "hello", v1::POOLING_MODEL), own);
  builder.Parameter("normalize").set_bool_param(false);
  EXPECT_EQ(embedding(builder), NativePooled(server, "hello", v1::POOLING_LAST));
  builder.Parameter("pooling").set_string_param("mean");
  EXPECT_EQ(embedding(builder), NativePooled(server, "hello", v1::POOLING_MEAN));
  // The vectors of single tokens are neither pooled nor normalised.
  EXPECT_EQ(NativePooled(server, "hello", v1::POOLING_UNSPECIFIED),
            FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode("hello")));
}

TEST(OipEncodeTest, ThePriorityIsANumber) {
  OipServer server(TestConfigWithEncoder());
  InferBuilder builder = Encoder().Text("text_input", "x");
  builder.Parameter("priority").set_uint64_param(1);
  EXPECT_TRUE(server.Infer(builder.request()).status.ok());
  EXPECT_EQ(server.Metric(R"(aft_queue_seconds_count{model="encoder",priority="interactive"})"), 1);
}

TEST(OipEncodeTest, StreamsAnswerWithOneFinalResponse) {
  OipServer server(TestConfigWithEncoder());
  InferStream stream(server.oip());
  ASSERT_TRUE(
      stream.Send(Encoder().Text("text_input", "ab").Output("last_hidden_state").request()));
  const auto responses = stream.ReadAll();
  ASSERT_EQ(responses.size(), 1U);
  EXPECT_TRUE(IsFinal(responses[0]));
  EXPECT_THAT(OutputNames(responses[0].infer_response()), ElementsAre("last_hidden_state"));
  EXPECT_EQ(Numbers<float>(responses[0].infer_response(), "last_hidden_state"),
            Vectors({'a', 'b'}));
}

// Another thread makes answers of more than 32 KiB.
TEST(OipEncodeTest, LargeAnswersAreComplete) {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].max_batch_tokens = 2000;
  FakeEncoderRunner::Options options;
  options.width = 300;
  OipServer server(config, {}, options);
  const std::string text(2000, 'x');
  const auto answer = server.Infer(Encoder().Text("text_input", text).request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(Numbers<float>(answer.response, "last_hidden_state"),
            FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode(text)));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// The refusal comes before the answer has memory.
TEST(OipEncodeTest, AnAnswerThatNoMessageHoldsIsRefused) {
  FakeEncoderRunner::Options options;
  options.width = 1 << 24;
  OipServer server(TestConfigWithEncoder(), {}, options);
  ExpectRefused(server,
                {{"outputs: the answer may have 2684354560 bytes",
                  Encoder().Text("text_input", std::string(40, 'x')).Output("last_hidden_state")}});
}

TEST(OipEncodeTest, ErrorsNameTheTensorOrTheParameter) {
  OipServer server(TestConfigWithEncoder());
  InferBuilder pooling = Encoder().Text("text_input", "x");
  pooling.Parameter("pooling").set_string_param("max");
  InferBuilder unknown = Encoder().Text("text_input", "x");
  unknown.Parameter("max_tokens").set_int64_param(1);
  const auto vectors = [](const std::vector<int64_t>& shape) {
    const size_t values = static_cast<size_t>(shape[1] * shape[2]);
    return Encoder().Raw("inputs_embeds", "FP32", shape, RawOf(std::vector<float>(values)));
  };
  std::string five;
  for (int i = 0; i < 5; ++i) five += RawText("x");
  ExpectRefused(
      server,
      {
          {"text_input: exactly one of text_input, input_ids, inputs_embeds must be given, got 0",
           Encoder()},
          {"text_input: exactly one of text_input, input_ids, inputs_embeds must be given, got 2",
           vectors({1, 1, 3}).Ids({1})},
          {"text_input: must have 1 to 4 rows (max_batch_size), got 5",
           Encoder().Raw("text_input", "BYTES", {5}, five)},
          {"text_input: must be of shape [B] or [B, 1], got [1, 2]",
           Encoder().Raw("text_input", "BYTES", {1, 2}, RawText("x") + RawText("y"))},
          {"text_input[1]: must not be empty",
           Encoder().Raw("text_input", "BYTES", {2}, RawText("x") + RawText(""))},
          {"text_input[0]: must have at most 64 tokens",
           Encoder().Text("text_input", std::string(65, 'x'))},
          {"input_ids[1][0]: must be in [0, 257)",
           Encoder().Raw("input_ids", "INT64", {2, 1}, RawOf<int64_t>({1, 300}))},
          {"input_ids: must have 1 to 4 rows", Encoder().Raw("input_ids", "INT64", {0, 3}, "")},
          {"input_ids: must be of shape [B, T] or [T], got [1, 1, 1]",
           Encoder().Raw("input_ids", "INT64", {1, 1, 1}, RawOf<int64_t>({1}))},
          {"input_ids[0]: must not be empty", Encoder().Raw("input_ids", "INT64", {1, 0}, "")},
          {"attention_mask: must have a number for each key, [2], or",
           Encoder().Ids({1, 2}).Raw("attention_mask", "INT64", {1}, RawOf<int64_t>({1}))},
          {"attention_mask[1]: must be 0 or 1, got 2",
           Encoder().Ids({1, 2}).Raw("attention_mask", "INT64", {2}, RawOf<int64_t>({1, 2}))},
          {"attention_mask[0]: must have a visible token",
           Encoder().Ids({1}).Raw("attention_mask", "INT64", {1}, RawOf<int64_t>({0}))},
          {"attention_mask: must be INT64, INT32 or BOOL, got FP32",
           Encoder().Ids({1}).Raw("attention_mask", "FP32", {1}, RawOf<float>({1}))},
          {"attention_mask: needs input_ids or inputs_embeds",
           Encoder()
               .Text("text_input", "x")
               .Raw("attention_mask", "INT64", {1}, RawOf<int64_t>({1}))},
          {"stream: is no input of model \"encoder\"",
           Encoder().Text("text_input", "x").Flag("stream")},
          {"text_output: is no output of", Encoder().Text("text_input", "x").Output("text_output")},
          {"parameters.pooling: must be one of \"mean\", \"first\", \"last\"", pooling},
          {"parameters.max_tokens: there is no such parameter", unknown},
      });
}

TEST(OipEncodeTest, AnAnswerWithoutMemoryIsCountedAsThatError) {
  constexpr size_t kWide = 1 << 15;
  FakeEncoderRunner::Options options;
  options.width = kWide;
  OipServer server(TestConfigWithEncoder(), {}, options);
  InferBuilder request = Encoder();
  request.Text("text_input", "x").Output("last_hidden_state");
  {
    const ShortMemory none(kWide * sizeof(float) + 1);
    const OipServer::Answer answer = server.Infer(request.request());
    EXPECT_THAT(answer.status,
                StatusIs(absl::StatusCode::kResourceExhausted, StartsWith("memory: ")));
    EXPECT_EQ(RetryHintOf(*answer.context), "1000");
  }
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "ModelInfer", "encoder")), 1);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "ModelInfer", "encoder")), 0);
}

}  // namespace
}  // namespace aft::server
