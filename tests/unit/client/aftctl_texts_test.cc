// aftctl as a process: several texts in one call, and versions of models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/proto_text.h"
#include "tests/unit/client/aftctl_fixture.h"

namespace aft::client {
namespace {

using testing::StartsWith;

class AftctlTextsTest : public AftctlFixture {};

TEST_F(AftctlTextsTest, ScoreTakesSeveralTextsAndPrintsALineForEach) {
  const Script script = StreamScript<v1::ScoreResponse>({
      "started { tokens: 5 text_tokens: [3, 2] fingerprint: 1 }",
      "index: 1 chunk { first_index: 1 token_ids: 99 logprobs { logprob: -2 } }",
      "index: 1 finished { scored_tokens: 1 logprob: -2 perplexity: 7.25 scored_bytes: 1 }",
      "chunk { first_index: 1 token_ids: 98 logprobs { logprob: -1 } }",
      "finished { scored_tokens: 2 logprob: -3 perplexity: 4.5 scored_bytes: 2 }",
  });
  const std::string table =
      "  TEXT  TOKENS  SCORED  LOGPROBABILITY  BITS/BYTE  PERPLEXITY\n"
      "     0       3       2         -3.0000     2.1640      4.5000\n"
      "     1       2       1         -2.0000     2.8854      7.2500\n";
  server_.SetScript(script);
  EXPECT_EQ(Run("score --text abc --text -x --model m --model-version 3").out, table);
  ExpectText(server_.last<v1::ScoreRequest>(),
             "texts { text: 'abc' } texts { text: '-x' } model: 'm' model_version: '3' "
             "resumable: true");
  EXPECT_EQ(Run("score --lines --tokens", "abc\n\xff\n").out,
            "  TEXT   INDEX   TOKEN    LOGPROB\n"
            "     1       1      99    -2.0000\n"
            "     0       1      98    -1.0000\n" +
                table);
  ExpectText(server_.last<v1::ScoreRequest>(),
             R"(texts { text: 'abc' } texts { raw: '\377' } resumable: true)");
  Run("score --lines --text abc", "", 2);
  Run("score --prompt abc --text abc", "", 2);
}

TEST_F(AftctlTextsTest, EncodePrintsTextsInTheirOrder) {
  server_.SetScript(StreamScript<v1::EncodeResponse>({
      "started { width: 2 tokens: 4 text_tokens: [1, 2, 1] }",
      "index: 1 vectors { values: [1, 2] }",
      "vectors { values: [3, 4] }",
      "index: 1 vectors { first_index: 1 values: [5, 6] }",
      "index: 1 finished { batch_rows: 2 }",
      "index: 2 vectors { values: [7, 8] }",
      "index: 0 finished { batch_rows: 2 }",
      "index: 2 finished { batch_rows: 1 }",
  }));
  const Ended ended = Run("encode --lines", "a\nbc\nd");
  ExpectText(server_.last<v1::EncodeRequest>(),
             "texts { text: 'a' } texts { text: 'bc' } texts { text: 'd' }");
  EXPECT_EQ(ended.out, "3 4\n\n1 2\n5 6\n\n7 8\n");
  EXPECT_THAT(ended.err, StartsWith("[3 texts | 4 tokens | 4 vectors of 2 | "));
  EXPECT_EQ(Run("encode --pooling last --text a --text bc --text d").out, "3 4\n1 2\n5 6\n7 8\n");
}

TEST_F(AftctlTextsTest, AModelsVersionIsNamed) {
  server_.SetScript(TextScript({"x"}));
  Run("generate --prompt hello --model m --model-version 7");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().model_version(), "7");
}

}  // namespace
}  // namespace aft::client
