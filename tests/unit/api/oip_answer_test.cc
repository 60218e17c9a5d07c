#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "server/api/oip/answer.h"
#include "server/api/oip/request.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/proto_text.h"

namespace aft::server::kserve {
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
}  // namespace aft::server::kserve
