#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/oip/answer.h"
#include "tests/support/fake_tokenizer.h"

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
  inference::ModelInferResponse response;
  answer.WriteEnd(Outcome(), response);
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  EXPECT_THAT(response.raw_output_contents(0),
              HasSubstr(R"("300":{"decoded_token":"","logprob":-0.5,"rank":1})"));
  EXPECT_THAT(response.raw_output_contents(0), HasSubstr(R"("97":{"decoded_token":"a")"));
}

}  // namespace
}  // namespace aft::server::kserve
