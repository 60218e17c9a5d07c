// Endpoints over HTTP that do not generate: embeddings, classes, tokens.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(HttpVectorsTest, EmbeddingsEqualThoseOfEncode) {
  FakeEncoderRunner::Options options;
  options.pooling = Pooling::kLast;
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const std::vector<float> all =
      FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode("hello"));
  const std::vector<float> last(all.end() - 3, all.end());
  Json body = {{"model", "encoder"}, {"input", "hello"}};
  const Json one = server.Post("/v1/embeddings", body).json();
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["data"][0]["embedding"].get<std::vector<float>>(), last);
  EXPECT_EQ(one["usage"]["prompt_tokens"], 5);
  body["truncate_prompt_tokens"] = -1;
  EXPECT_EQ(server.Post("/v1/embeddings", body).json(), one);
  body["encoding_format"] = "base64";
  body["input"] = {"a", "hello", "b"};
  const Json several = server.Post("/v1/embeddings", body).json();
  ASSERT_EQ(several["data"].size(), 3U);
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(several["data"][1]["embedding"].get<std::string>(), &bytes));
  ASSERT_EQ(bytes.size(), last.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes.data(), last.data(), bytes.size()), 0);
  EXPECT_EQ(several["usage"]["total_tokens"], 7);
  body["input"] = {Json::array({104, 105}), Json::array({1})};
  EXPECT_EQ(server.Post("/v1/embeddings", body).status, 200);
  const auto refused = [&](const Json& bad, const char* param) {
    const HttpReply reply = server.Post("/v1/embeddings", bad);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
  };
  refused({{"model", "encoder"}}, "input");
  refused({{"model", "encoder"}, {"input", ""}}, "input");
  refused({{"model", "encoder"}, {"input", {"a", ""}}}, "input[1]");
  refused({{"model", "encoder"}, {"input", "a"}, {"dimensions", 2}}, "dimensions");
  refused({{"model", "encoder"}, {"input", "a"}, {"encoding_format", "hex"}}, "encoding_format");
  refused({{"model", "encoder"}, {"input", "a"}, {"truncate_prompt_tokens", 5}},
          "truncate_prompt_tokens");
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Embeddings", "encoder")), 4);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpVectorsTest, EmbeddingsOfALanguageModelAreItsLastHiddenVectors) {
  HttpApi server;
  const std::vector<std::string> texts = {"a", std::string(150, 'x'), "hello"};
  const Json json = server.Post("/v1/embeddings", {{"model", "fake"}, {"input", texts}}).json();
  ASSERT_EQ(json["data"].size(), texts.size()) << json;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> hidden = FakeModelRunner::Hidden(*FakeTokenizer().Encode(texts[i]));
    EXPECT_EQ(json["data"][i]["embedding"].get<std::vector<float>>(),
              std::vector<float>(hidden.end() - FakeModelRunner::kHiddenWidth, hidden.end()));
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 156);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "Embeddings", "fake")), 1);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HttpVectorsTest, ATextThatFailsIsNamed) {
  FakeEncoderRunner::Options options;
  options.nan_token = 'Z';
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const Json body = {{"model", "encoder"}, {"input", {"a", "Z"}}};
  const HttpReply reply = server.Post("/v1/embeddings", body);
  EXPECT_EQ(reply.status, 500) << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("input[1]: "));
}

TEST(HttpVectorsTest, ClassesFollowFromTheLogits) {
  FakeEncoderRunner::Options options;
  options.pooling = Pooling::kLast;
  options.labels = {"one", "two", "three"};
  HttpApi server(WithHttp(TestConfigWithEncoder()), {}, options);
  const std::vector<std::string> texts = {"a", "hello"};
  const Json json = server.Post("/classify", {{"model", "encoder"}, {"input", texts}}).json();
  ASSERT_EQ(json["data"].size(), texts.size()) << json;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> all =
        FakeEncoderRunner::Vectors(options, *FakeTokenizer().Encode(texts[i]));
    const std::vector<float> logits(all.end() - 3, all.end());
    const Json& item = json["data"][i];
    EXPECT_EQ(item["index"], i);
    EXPECT_EQ(item["num_classes"], 3);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - logits[0]);
    for (size_t k = 0; k < logits.size(); ++k) {
      EXPECT_NEAR(item["probs"][k].get<double>(), std::exp(logits[k] - logits[0]) / sum, 1e-6);
    }
    const auto most = absl::c_max_element(logits) - logits.begin();
    EXPECT_EQ(item["label"], options.labels[static_cast<size_t>(most)]);
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
  const Json entry = server.Get("/v1/models/encoder").json();
  EXPECT_EQ(entry["task"], "classify");
  EXPECT_EQ(entry["labels"], Json(options.labels));
  EXPECT_EQ(server.Get("/v1/models/fake").json()["task"], "generate");
  EXPECT_THAT(server.Post("/classify", {{"model", "fake"}, {"input", "a"}}).body,
              HasSubstr(R"(model \"fake\" is not a classifier)"));
  EXPECT_THAT(server.Post("/v1/completions", {{"model", "encoder"}, {"prompt", "a"}}).body,
              HasSubstr("is a classifier: it serves POST /classify, not Completions"));
  const Json format = {{"model", "encoder"}, {"input", "a"}, {"encoding_format", "float"}};
  EXPECT_EQ(server.Post("/classify", format).json()["error"]["param"], "encoding_format");
}

TEST(HttpVectorsTest, TokensEqualTheModels) {
  FakeModelRunner::Options options;
  options.max_seq_len = 40;
  HttpApi server(WithHttp(), options);
  const Json tokens = server.Post("/tokenize", {{"model", "fake"}, {"prompt", "ab"}}).json();
  EXPECT_EQ(tokens["count"], 2);
  EXPECT_EQ(tokens["max_model_len"], 40);
  EXPECT_EQ(server.Get("/v1/models/fake").json()["max_model_len"], 40);
  EXPECT_EQ(tokens["tokens"], Json::array({97, 98}));
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", {97, 98}}}).json()["prompt"], "ab");
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", "x"}}).json()["error"]["param"], "tokens");
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", {257}}}).json()["error"]["param"], "tokens[0]");
  // The lower 32 bits are a token's id.
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", {4294967393}}}).json()["error"]["param"],
            "tokens[0]");
  EXPECT_EQ(server.Post("/tokenize", {{"prompt", "x"}, {"y", 1}}).json()["error"]["param"], "y");
  EXPECT_EQ(server.Post("/tokenize", {{"prompt", "x"}, {"y", nullptr}}).status, 200);
  Json special = {{"prompt", "ab"}, {"add_special_tokens", true}};
  EXPECT_EQ(server.Post("/tokenize", special).json()["tokens"], Json::array({97, 98}));
  special["add_special_tokens"] = 1;
  EXPECT_THAT(server.Post("/tokenize", special).body,
              HasSubstr("add_special_tokens: must be true"));
  // An error repeats only the beginning of a name.
  EXPECT_LT(server.Post("/tokenize", {{std::string(5000, 'y'), 1}}).body.size(), 1000U);
  EXPECT_EQ(server.Post("/tokenize", {{"prompt", nullptr}}).json()["error"]["param"], "prompt");
}

}  // namespace
}  // namespace aft::server
