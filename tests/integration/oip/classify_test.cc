// ModelInfer with classifiers, of texts and of images whose pixels are ids, over real gRPC. The
// fake encoder's vectors of width 3 are the logits of three labels.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/oip/tensors.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// A classifier of texts, or of images if `max_image_width` is set.
FakeEncoderRunner::Options Classifier(int64_t max_image_width = 0) {
  FakeEncoderRunner::Options options;
  options.vocab_size = 17;
  options.max_image_width = max_image_width;
  options.labels = {"one", "two", "three"};
  return options;
}

InferBuilder Images(const std::vector<int64_t>& shape, const std::vector<int64_t>& pixels) {
  return InferBuilder("encoder").Raw("input_ids", "INT64", shape, RawOf(pixels));
}

// The mean of the vectors of all tokens.
std::vector<float> Logits(const FakeEncoderRunner::Options& options, const EncoderInput& input) {
  const TokenVectors vectors = FakeEncoderRunner::Vectors(options, input);
  std::vector<double> sums(3);
  for (size_t i = 0; i < vectors.size(); ++i) sums[i % 3] += vectors[i];
  std::vector<float> logits;
  for (const double sum : sums) {
    logits.push_back(static_cast<float>(sum / static_cast<double>(vectors.size() / 3)));
  }
  return logits;
}

InferBuilder& Classes(InferBuilder& builder, int64_t count) {
  builder.Output("logits");
  (*builder.request().mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(
      count);
  return builder;
}

std::vector<std::string> Strings(const ModelInferResponse& response) {
  const std::string& raw = RawOutput(response, "logits");
  std::vector<std::string> strings;
  for (size_t at = 0; at + 4 <= raw.size();) {
    uint32_t size = 0;
    std::memcpy(&size, raw.data() + at, 4);
    strings.push_back(raw.substr(at + 4, size));
    at += 4 + size;
  }
  return strings;
}

TEST(OipClassifyTest, AnImagesLogitsAreTheMeansOfItsPixels) {
  const FakeEncoderRunner::Options options = Classifier(4);
  OipServer server(TestConfigWithEncoder(), {}, options);
  const std::vector<int64_t> pixels = {0, 1, 2, 3, 4, 5, 16, 7, 8, 9, 10, 11};
  const auto answer = server.Infer(Images({2, 2, 3}, pixels).request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(OutputNames(answer.response), ElementsAre("logits"));
  EXPECT_THAT(ShapeOf(answer.response, "logits"), ElementsAre(2, 3));
  std::vector<float> want = Logits(options, {.text = {0, 1, 2, 3, 4, 5}, .image_width = 3});
  const std::vector<float> second =
      Logits(options, {.text = {16, 7, 8, 9, 10, 11}, .image_width = 3});
  want.insert(want.end(), second.begin(), second.end());
  EXPECT_EQ(Numbers<float>(answer.response, "logits"), want);
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 12);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipClassifyTest, TextsAreClassifiedToo) {
  const FakeEncoderRunner::Options options = Classifier();
  OipServer server(TestConfigWithEncoder(), {}, options);
  const auto answer =
      server.Infer(InferBuilder("encoder")
                       .Raw("input_ids", "INT64", {2, 2}, RawOf<int64_t>({1, 2, 3, 9}))
                       .Raw("attention_mask", "INT64", {2, 2}, RawOf<int64_t>({1, 1, 1, 0}))
                       .request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::vector<float> want = Logits(options, {{1, 2}});
  const std::vector<float> second = Logits(options, {{3}});
  want.insert(want.end(), second.begin(), second.end());
  EXPECT_EQ(Numbers<float>(answer.response, "logits"), want);
}

// The format is Triton's: "logit:index:label", with the largest logit first.
TEST(OipClassifyTest, ClassificationNamesTheLargestLogits) {
  const FakeEncoderRunner::Options options = Classifier(4);
  OipServer server(TestConfigWithEncoder(), {}, options);
  const std::vector<float> logits = Logits(options, {.text = {5}, .image_width = 1});
  const auto one = [&](size_t i) {
    return absl::StrFormat("%f:%d:%s", logits[i], i, options.labels[i]);
  };
  for (const auto& [count, want] : std::vector<std::pair<int64_t, std::vector<std::string>>>{
           {1, {one(0)}}, {2, {one(0), one(1)}}, {99, {one(0), one(1), one(2)}}}) {
    InferBuilder builder = Images({2, 1, 1}, {5, 5});
    const auto answer = server.Infer(Classes(builder, count).request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    const auto shown = static_cast<int64_t>(want.size());
    EXPECT_THAT(ShapeOf(answer.response, "logits"), ElementsAre(2, shown));
    std::vector<std::string> twice = want;
    twice.insert(twice.end(), want.begin(), want.end());
    EXPECT_EQ(Strings(answer.response), twice);
  }
}

TEST(OipClassifyTest, ClassesWithNanComeLast) {
  OipServer server(TestConfigWithEncoder(), {}, Classifier(4));
  InferBuilder builder = Vectors({1, 1, 1, 3}, {kNan, 1, 2});
  const auto answer = server.Infer(Classes(builder, 3).request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::vector<std::string> strings = Strings(answer.response);
  ASSERT_EQ(strings.size(), 3U);
  EXPECT_THAT(strings[0], StartsWith("1002.000000:2:three"));
  EXPECT_THAT(strings[1], StartsWith("1001.000000:1:two"));
  EXPECT_THAT(strings[2], testing::EndsWith(":0:one"));
}

TEST(OipClassifyTest, ErrorsNameTheTensor) {
  OipServer server(TestConfigWithEncoder(), {}, Classifier(8));
  InferBuilder pooling = Images({1, 1, 1}, {1});
  pooling.Parameter("pooling").set_string_param("mean");
  InferBuilder zero = Images({1, 1, 1}, {1});
  Classes(zero, 0);
  InferBuilder text = Images({1, 1, 1}, {1});
  text.Output("logits");
  (*text.request().mutable_outputs(0)->mutable_parameters())["classification"].set_string_param(
      "3");
  ExpectRefused(
      server,
      {{"input_ids: exactly one of input_ids, inputs_embeds must be given, got 0",
        InferBuilder("encoder")},
       {"input_ids: must be of shape [B, H, W], got [4]", Images({4}, {1, 2, 3, 4})},
       {"input_ids[1][2]: must be in [0, 17), the vocabulary, got 17",
        Images({2, 1, 3}, {1, 2, 3, 4, 5, 17})},
       {"input_ids[0][0]: must be in [0, 17), the vocabulary, got -1", Images({1, 1, 1}, {-1})},
       {"input_ids: must be INT64 or INT32, got FP32",
        InferBuilder("encoder").Raw("input_ids", "FP32", {1, 1, 1}, RawOf<float>({1}))},
       {"text_input: is no input of model \"encoder\"",
        InferBuilder("encoder").Text("text_input", "x")},
       {"attention_mask: is no input of model \"encoder\"",
        Images({1, 1, 1}, {1}).Raw("attention_mask", "INT64", {1, 1, 1}, RawOf<int64_t>({1}))},
       {"embedding: is no output of model \"encoder\"", Images({1, 1, 1}, {1}).Output("embedding")},
       {"parameters.pooling: there is no such parameter", pooling},
       {"logits: classification: must be an integer of at least 1", zero},
       {"logits: classification: must be an integer of at least 1", text}});
}

TEST(OipClassifyTest, MetadataNamesTheLabels) {
  OipServer server(TestConfigWithEncoder(), {}, Classifier(4));
  inference::ModelMetadataRequest request;
  request.set_name("encoder");
  inference::ModelMetadataResponse metadata;
  grpc::ClientContext context;
  ASSERT_TRUE(server.oip().ModelMetadata(&context, request, &metadata).ok());
  ASSERT_EQ(metadata.inputs_size(), 2);
  EXPECT_EQ(metadata.inputs(0).name(), "input_ids");
  EXPECT_THAT(metadata.inputs(0).shape(), ElementsAre(-1, -1, -1));
  EXPECT_EQ(metadata.inputs(1).name(), "inputs_embeds");
  EXPECT_THAT(metadata.inputs(1).shape(), ElementsAre(-1, -1, -1, 3));
  ASSERT_EQ(metadata.outputs_size(), 1);
  EXPECT_EQ(metadata.outputs(0).name(), "logits");
  EXPECT_THAT(metadata.outputs(0).shape(), ElementsAre(-1, 3));

  inference::ModelConfigRequest config_request;
  config_request.set_name("encoder");
  inference::ModelConfigResponse config;
  grpc::ClientContext config_context;
  ASSERT_TRUE(server.oip().ModelConfig(&config_context, config_request, &config).ok());
  EXPECT_EQ(nlohmann::json::parse(config.config().parameters().at("labels").string_value()),
            nlohmann::json({"one", "two", "three"}));
}

TEST(OipClassifyTest, EncodeRefusesImages) {
  OipServer server(TestConfigWithEncoder(), {}, Classifier(4));
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text("x");
  EXPECT_THAT(EncodeStream(server.inference(), request).Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "model \"encoder\" is a classifier of images: it serves ModelInfer (aftctl "
                       "infer over gRPC), not Encode"));
}

}  // namespace
}  // namespace aft::server
