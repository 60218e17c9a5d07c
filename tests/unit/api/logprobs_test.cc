// Tests the log-probabilities of OpenAI's API.
#include "server/api/openai/logprobs.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "aft/v1/inference.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "server/api/aft/text_codec.h"
#include "server/api/openai/generation_exchange.h"
#include "server/api/openai/json_text.h"
#include "server/engine/request.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server::openai {
namespace {

OrderedJson Taken(CompletionLogprobs& logprobs) {
  std::string json;
  logprobs.Take(json);
  return OrderedJson::parse(json);
}

// A token of six bytes whose numbers have the most digits.
TEST(ChatLogprobsTest, TheTextIsNotLargerThanItsCharge) {
  const FakeTokenizer tokenizer({" token"});
  SampledToken token = {.id = FakeTokenizer::kFirstWord, .logprob = -5.4545231F, .top = {}};
  token.top.assign(20, {.id = token.id, .logprob = token.logprob});
  TokenIdList ids;
  ids.Add(static_cast<uint32_t>(token.id));
  LogprobList logprobs;
  const size_t bytes = AddLogprobs(token, *logprobs.Add());
  std::string json;
  AppendChatLogprobs(tokenizer, ids, logprobs, json);
  const OrderedJson entry = OrderedJson::parse(json)["content"][0];
  EXPECT_EQ(entry["token"], " token");
  EXPECT_EQ(entry["logprob"].get<float>(), token.logprob);
  EXPECT_EQ(entry["bytes"].size(), 6U);
  ASSERT_EQ(entry["top_logprobs"].size(), 20U);
  EXPECT_EQ(entry["top_logprobs"][19]["bytes"], entry["bytes"]);

  GenerationExchange exchange(/*chat=*/true, "id");
  static_cast<google::protobuf::StringValue&>(exchange.request())
      .set_value(R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true})");
  ASSERT_TRUE(exchange.CheckRequest().ok());
  TokenDelta delta;
  delta.text = " token";
  exchange.Append(std::move(delta), /*sequence=*/0);
  EXPECT_LE(json.size(), bytes * exchange.held_bytes() / exchange.pending_bytes());
}

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
  const OrderedJson json = Taken(logprobs);
  EXPECT_EQ(json["token_logprobs"][0], -3);
  EXPECT_EQ(json["top_logprobs"][0], (OrderedJson{{"a", -1}, {"b", -2}}));
}

// JSON has no infinity.
TEST(CompletionLogprobsTest, ALogprobThatIsNotFiniteIsNull) {
  const FakeTokenizer tokenizer;
  v1::TokenLogprobs logprob;
  logprob.set_logprob(-1);
  v1::Alternative& other = *logprob.add_top();
  other.set_token_id('b');
  other.set_logprob(-std::numeric_limits<float>::infinity());
  CompletionLogprobs logprobs;
  logprobs.Add(tokenizer, 'a', &logprob);
  EXPECT_EQ(Taken(logprobs)["top_logprobs"][0], (OrderedJson{{"b", nullptr}, {"a", -1}}));
}

TEST(CompletionLogprobsTest, OffsetsCountTheCharactersOfTheText) {
  const FakeTokenizer tokenizer;
  const auto offsets = [&](const std::vector<uint32_t>& ids) {
    CompletionLogprobs logprobs;
    for (const uint32_t id : ids) logprobs.Add(tokenizer, id, nullptr);
    return Taken(logprobs)["text_offset"];
  };
  // No character begins with E0 80, so each of the two bytes becomes a character: U+FFFD.
  EXPECT_EQ(offsets({0xE0, 0x80, 'a'}), OrderedJson({0, 1, 2}));
  // A token without bytes does not end the character around it.
  EXPECT_EQ(offsets({0xE2, FakeTokenizer::kEos, 0x82, 0xAC, 'a'}), OrderedJson({0, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace aft::server::openai
