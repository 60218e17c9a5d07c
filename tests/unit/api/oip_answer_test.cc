#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "model/api/tokenizer.h"
#include "server/api/oip/answer.h"
#include "server/api/oip/request.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/proto_text.h"

namespace aft::server::oip {
namespace {

using ::testing::HasSubstr;

TEST(GenerationAnswerTest, IdsBeyondTheTokenizersVocabularyHaveNoText) {
  GenerationForm form;
  form.named = {"logprobs"};
  form.logprobs = true;
  GenerationAnswer answer(form, std::make_shared<FakeTokenizer>());
  TokenDelta delta;
  delta.tokens.push_back({.id = 'a', .logprob = -1, .top = {{.id = 300, .logprob = -0.5F}}});
  answer.Collect(std::move(delta));
  const size_t held = answer.held_bytes();
  inference::ModelInferResponse response;
  answer.WriteEnd(Outcome(), response);
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  EXPECT_GE(held, response.raw_output_contents(0).size());
  EXPECT_THAT(response.raw_output_contents(0),
              HasSubstr(R"("300":{"decoded_token":"","logprob":-0.5,"rank":1})"));
  EXPECT_THAT(response.raw_output_contents(0), HasSubstr(R"("97":{"decoded_token":"a")"));
}

// Counts how often it is asked for the text of a token.
class CountingTokenizer final : public Tokenizer {
 public:
  int32_t vocab_size() const override { return fake_.vocab_size(); }
  int32_t eos_id() const override { return fake_.eos_id(); }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    return fake_.Encode(text);
  }
  absl::string_view TokenBytes(int32_t id) const override {
    ++asked;
    return fake_.TokenBytes(id);
  }
  mutable int asked = 0;

 private:
  const FakeTokenizer fake_;
};

// An engine's thread calls Collect for each token, and all its clients wait for it.
TEST(GenerationAnswerTest, TheJsonOfASingleResponseIsMadeAtTheEnd) {
  GenerationForm form;
  form.named = {"logprobs"};
  form.logprobs = true;
  const auto tokenizer = std::make_shared<CountingTokenizer>();
  GenerationAnswer answer(form, tokenizer);
  for (const char c : {'a', 'b'}) {
    TokenDelta delta;
    delta.text = std::string(1, c);
    SampledToken token;
    token.id = c;
    for (int i = 0; i < 20; ++i) token.top.push_back({.id = 'A' + i, .logprob = -0.5F});
    delta.tokens.push_back(std::move(token));
    answer.Collect(std::move(delta));
  }
  EXPECT_EQ(tokenizer->asked, 40);  // for the sizes of the alternatives' texts
  const size_t held = answer.held_bytes();
  inference::ModelInferResponse response;
  answer.WriteEnd(Outcome(), response);
  EXPECT_EQ(tokenizer->asked, 40 + 42);
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  const std::string& json = response.raw_output_contents(0);
  EXPECT_GE(held, json.size());
  EXPECT_LT(held, 2 * json.size());
  EXPECT_THAT(json, HasSubstr(R"("97":{"decoded_token":"a","logprob":0.0}}, {"65")"));
  EXPECT_THAT(json, HasSubstr(R"("98":{"decoded_token":"b","logprob":0.0}}])"));
}

TEST(GenerationAnswerTest, LogprobsCountAsTheJsonThatTheyBecome) {
  GenerationForm form;
  form.streams = form.logprobs = true;
  GenerationAnswer answer(form, std::make_shared<FakeTokenizer>());
  for (const int alternatives : {0, 20}) {
    TokenDelta delta;
    delta.text = "abc";
    for (const char c : delta.text) {
      SampledToken token;
      token.id = c;
      token.logprob = -1.2345678F;
      for (int i = 0; i < alternatives; ++i) {
        token.top.push_back({.id = 'A' + i, .logprob = -12.345678F});
      }
      delta.tokens.push_back(std::move(token));
    }
    inference::ModelInferResponse response;
    answer.WriteToken(delta, response);
    ASSERT_EQ(response.raw_output_contents_size(), 2);
    const size_t json = response.raw_output_contents(1).size();
    EXPECT_GE(answer.WireBytes(delta), json);
    EXPECT_LT(answer.WireBytes(delta), 2 * json);
  }
}

// A client can choose long ones with logit_bias.
TEST(GenerationAnswerTest, TheTextsOfAlternativesCountToo) {
  GenerationForm form;
  form.named = {"logprobs"};
  form.logprobs = true;
  TokenDelta delta;
  delta.text = "a";
  SampledToken token;
  token.id = 'a';
  std::vector<std::string> words;
  for (int i = 0; i < 20; ++i) {
    words.emplace_back(128, static_cast<char>('A' + i));
    token.top.push_back({.id = FakeTokenizer::kFirstWord + i, .logprob = -12.345678F});
  }
  delta.tokens.push_back(std::move(token));
  const auto tokenizer = std::make_shared<FakeTokenizer>(std::move(words));
  GenerationAnswer single(form, tokenizer);
  single.Collect(delta);
  const size_t held = single.held_bytes();
  inference::ModelInferResponse response;
  single.WriteEnd(Outcome(), response);
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  const size_t json = response.raw_output_contents(0).size();
  EXPECT_GT(json, 20 * 128U);
  EXPECT_GE(held, json);
  EXPECT_LT(held, 2 * json);
  form.streams = true;
  EXPECT_GE(GenerationAnswer(form, tokenizer).WireBytes(delta), json);
}

TEST(EncodingAnswerTest, ClassesAreChargedWithTheirLabels) {
  EncodingForm form;
  form.lengths = {1, 1};
  form.width = 3;
  form.hidden = false;
  form.top_classes = 2;
  form.labels = {std::string(1000, 'l'), "b", "c"};
  EXPECT_GE(EncodingAnswer(form).most_bytes(), 2 * 2 * 1000U);
}

TEST(InferenceTest, RulesForTokensAndBadWordsAreCharged) {
  ServedModel model;
  model.info.vocab_size = 257;
  model.tokenizer = std::make_shared<FakeTokenizer>();
  const auto decoded = DecodeInference(
      FromText<inference::ModelInferRequest>(R"pb(
        inputs {
          name: "text_input"
          datatype: "BYTES"
          shape: 1
          contents { bytes_contents: "hi" }
        }
        inputs {
          name: "sampling_parameters"
          datatype: "BYTES"
          shape: 1
          contents { bytes_contents: '{"logit_bias": {"5": 1}, "bad_words": ["abc"]}' }
        })pb"),
      {}, model, Reply::kUnary);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tokens, 2 + 3 + sizeof(LogitRule) / sizeof(TokenId));
}

}  // namespace
}  // namespace aft::server::oip
