// Tests the log-probabilities of OpenAI's API.
#include "server/api/openai/logprobs.h"

#include <cstdint>
#include <vector>

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

TEST(CompletionLogprobsTest, OffsetsCountTheCharactersOfTheText) {
  const FakeTokenizer tokenizer;
  const auto offsets = [&](const std::vector<uint32_t>& ids) {
    CompletionLogprobs logprobs;
    for (const uint32_t id : ids) logprobs.Add(tokenizer, id, nullptr);
    return logprobs.Take()["text_offset"];
  };
  // No character begins with E0 80, so each of the two bytes becomes a character: U+FFFD.
  EXPECT_EQ(offsets({0xE0, 0x80, 'a'}), OrderedJson({0, 1, 2}));
  // A token without bytes does not end the character around it.
  EXPECT_EQ(offsets({0xE2, FakeTokenizer::kEos, 0x82, 0xAC, 'a'}), OrderedJson({0, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace aft::server::openai
