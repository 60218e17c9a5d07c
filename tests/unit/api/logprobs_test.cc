// Tests the log-probabilities of OpenAI's API.
#include "server/api/openai/logprobs.h"

#include "aft/v1/inference.pb.h"
#include "gtest/gtest.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server::openai {
namespace {

TEST(CompletionLogprobsTest, TheMostLikelyOfTokensWithTheSameBytesIsShown) {
  const FakeTokenizer tokenizer({"a"});  // the token 257 has the same byte as the token 97
  v1::TokenLogprobs logprob;
  logprob.set_logprob(-3);
  for (const uint32_t id : {97, 98, 257}) {
    v1::Alternative& other = *logprob.add_top();
    other.set_token_id(id);
    other.set_logprob(id == 97 ? -1.0F : id == 98 ? -2.0F : -3.0F);
  }
  CompletionLogprobs logprobs;
  logprobs.Add(tokenizer, 257, &logprob);
  const OrderedJson json = logprobs.Take();
  EXPECT_EQ(json["token_logprobs"][0], -3);
  EXPECT_EQ(json["top_logprobs"][0], (OrderedJson{{"a", -1}, {"b", -2}}));
}

}  // namespace
}  // namespace aft::server::openai
