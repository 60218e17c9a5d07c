// aftctl complete, tokenize and detokenize as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/proto_text.h"
#include "tests/unit/client/aftctl_fixture.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class AftctlUnaryTest : public AftctlFixture {};

TEST_F(AftctlUnaryTest, CompletePrintsTheWholeAnswer) {
  server_.SetScript(StreamScript<v1::CompleteResponse>(
      {"started { seed: 7 prompt { text: 'It is' } }"
       "answers { text: ' a truth' finished { limit: 'stop.max_tokens=2'"
       "          usage { generated_tokens: 2 } } }"}));
  const Ended ended = Run("complete --prompt hello --max-tokens 2 --n 1 --model austen");
  EXPECT_EQ(ended.out, "It is a truth");
  EXPECT_THAT(ended.err, StartsWith("[limit stop.max_tokens=2 | 2 tokens"));
  ExpectText(server_.last<v1::GenerateRequest>(),
             "text: 'hello' model: 'austen' n: 1 stop { max_tokens: 2 }");
  EXPECT_EQ(nlohmann::json::parse(Run("complete --prompt x --json").out)["answers"][0]["text"],
            " a truth");
}

TEST_F(AftctlUnaryTest, CompletePrintsSeveralAnswersOneAfterTheOther) {
  server_.SetScript(
      StreamScript<v1::CompleteResponse>({"started { seed: 7 } answers { text: 'one' finished {} } "
                                          "answers { text: 'two' finished {} }"}));
  const Ended ended = Run("complete --prompt hello --n 2");
  EXPECT_EQ(ended.out, "== 1 of 2, seed 7 ==\none\n\n== 2 of 2, seed 8 ==\ntwo");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("seed 7"), HasSubstr("seed 8")));
}

TEST_F(AftctlUnaryTest, TokenizePrintsALineForEachId) {
  server_.SetScript(
      StreamScript<v1::TokenizeResponse>({"model: 'm' token_ids: [5, 6] byte_ends: [2, 5]"}));
  EXPECT_EQ(Run("tokenize --prompt hello --model m").out, "5\t\"he\"\n6\t\"llo\"\n");
  ExpectText(server_.last<v1::TokenizeRequest>(), "model: 'm' text: 'hello'");
  EXPECT_EQ(Run("tokenize", "h\xFFllo").out, "5\t\"h\\xff\"\n6\t\"llo\"\n");
  EXPECT_EQ(server_.last<v1::TokenizeRequest>().raw(), "h\xFFllo");
  EXPECT_EQ(nlohmann::json::parse(Run("tokenize --prompt hello --json").out)["byte_ends"][1], 5);
}

TEST_F(AftctlUnaryTest, DetokenizePrintsTheBytes) {
  server_.SetScript(StreamScript<v1::DetokenizeResponse>(
      {"text: 'h\\357\\277\\275' raw: 'h\\377' byte_ends: [2]"}));
  EXPECT_EQ(Run("detokenize 5 6 --model m").out, "h\xFF");
  ExpectText(server_.last<v1::DetokenizeRequest>(), "model: 'm' token_ids: [5, 6]");
  EXPECT_EQ(nlohmann::json::parse(Run("detokenize 5 --json").out)["text"], "h\xEF\xBF\xBD");
}

TEST_F(AftctlUnaryTest, UnaryCallsThatFailSaySo) {
  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "token_ids[0]: must be below 3"}));
  EXPECT_THAT(Run("detokenize 5", "", 4).err, HasSubstr("token_ids[0]: must be below 3"));
  EXPECT_THAT(Run("complete --prompt x", "", 4).err, HasSubstr("token_ids[0]"));
}

}  // namespace
}  // namespace aft::client
