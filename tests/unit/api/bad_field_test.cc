// Tests that every field out of range is refused with its name, its range and the given value.
// named_options_test.cc tests the numbers and lists of generation_options.proto.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/score_codec.h"
#include "tests/support/proto_text.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

struct BadRequest {
  std::string request;  // as text proto
  std::string message;  // the expected error
};

std::string Repeat(const std::string& text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) absl::StrAppend(&repeated, text, " ");
  return repeated;
}
std::string Text(int bytes) { return absl::StrCat("text: '", std::string(bytes, 'x'), "' "); }

template <typename Codec>
void ExpectRefused(const std::vector<BadRequest>& requests, const ModelFacts& facts = {}) {
  LimitsConfig limits;
  limits.max_prompt_bytes = 1000;
  limits.max_prompt_tokens = 900;
  limits.max_max_tokens = 500;
  for (const BadRequest& bad : requests) {
    const auto request = FromText<typename Codec::Request>(bad.request);
    EXPECT_EQ(Decode<Codec>(request, facts, limits).status(),
              absl::InvalidArgumentError(bad.message));
  }
}

// The errors of a text, which are the same in all methods that accept at most 900 tokens.
std::vector<BadRequest> BadTexts(const std::string& oneof) {
  return {
      {"", oneof + ": one of text, raw, tokens must be set"},
      {"text: ''", "text: must not be empty"},
      {Text(1001), "text: must have at most 1000 bytes, got 1001"},
      {Text(1000), "text: must have at most 900 tokens, got 1000"},
      {"raw: ''", "raw: must not be empty"},
      {"raw: '" + std::string(1001, 'x') + "'", "raw: must have at most 1000 bytes, got 1001"},
      {"tokens {}", "tokens.ids: must not be empty"},
      {"tokens { " + Repeat("ids: 1", 901) + "}",
       "tokens.ids: must have at most 900 tokens, got 901"},
      {"tokens { ids: [256, 257] }",
       "tokens.ids[1]: must be below 257, the size of the vocabulary, got 257"},
      {"tokens { ids: 4294967295 }",
       "tokens.ids[0]: must be below 257, the size of the vocabulary, got 4294967295"},
  };
}

TEST(BadFieldTest, TextsOfEveryMethod) {
  ExpectRefused<GenerateCodec>(BadTexts("prompt"));
  ExpectRefused<ScoreCodec>(BadTexts("text_to_score"));
  ExpectRefused<EncodeCodec>(BadTexts("text_to_encode"));
}

TEST(BadFieldTest, StopAndOutputOptions) {
  const auto stop = [](const std::string& fields) { return "text: 'x' stop { " + fields + " }"; };
  ExpectRefused<GenerateCodec>({
      {stop("max_tokens: 0"),
       "stop.max_tokens: must be in [1, 500], got 0; 0 needs prompt_logprobs"},
      {stop("max_tokens: 0") + " prompt_logprobs: true n: 2",
       "n: must be 1 if max_tokens is 0: all answers would be the same"},
      {stop("max_tokens: 501"), "stop.max_tokens: must be in [1, 500], got 501"},
      {stop("max_tokens: 4294967295"), "stop.max_tokens: must be in [1, 500], got 4294967295"},
      {"text: 'x' cache_salt: '" + std::string(65, 's') + "'",
       "cache_salt: must have at most 64 bytes, got 65"},
      {stop("strings: ['x', '']"), "stop.strings[1]: must have 1 to 256 bytes, got 0"},
      {stop("strings: '" + std::string(257, 'x') + "'"),
       "stop.strings[0]: must have 1 to 256 bytes, got 257"},
      {stop("token_ids: 300"),
       "stop.token_ids[0]: must be below 257, the size of the vocabulary, got 300"},
  });
  const BadRequest logprobs = {"text: 'x' output { top_logprobs: 21 }",
                               "output.top_logprobs: must be in [0, 20], got 21"};
  ExpectRefused<GenerateCodec>({logprobs});
  ExpectRefused<ScoreCodec>({logprobs});
  ExpectRefused<GenerateCodec>({{"text: 'x' n: 0", "n: must be in [1, 16], got 0"},
                                {"text: 'x' n: 17", "n: must be in [1, 16], got 17"}});
  const BadRequest priority = {"text: 'x' priority: 4",
                               "priority: must be a value of aft.v1.Priority, got 4"};
  ExpectRefused<GenerateCodec>({priority});
  ExpectRefused<ScoreCodec>({priority});
  ExpectRefused<EncodeCodec>({priority});
  ExpectRefused<EncodeCodec>(
      {{"text: 'x' pooling: 17", "pooling: must be a value of aft.v1.Pooling, got 17"}});
}

TEST(BadFieldTest, RulesForSingleTokens) {
  const auto with = [](const std::string& sampling, const std::string& stop = "") {
    return absl::StrCat("text: 'x' sampling { ", sampling, " } stop { ", stop, " }");
  };
  const auto ids = [](const std::string& field, int first, int last) {
    std::string list;
    for (int id = first; id <= last; ++id) absl::StrAppend(&list, field, ": ", id, " ");
    return list;
  };
  const std::string vocabulary = "must be below 257, the size of the vocabulary, got ";
  ExpectRefused<GenerateCodec>({
      {with("logit_bias { key: 300 value: 1 } logit_bias { key: 257 value: nan }"),
       "sampling.logit_bias[257]: " + vocabulary + "257"},
      {with("logit_bias { key: 7 value: 100.5 }"),
       "sampling.logit_bias[7]: must be in [-100, 100], got 100.5"},
      {with("logit_bias { key: 7 value: nan }"),
       "sampling.logit_bias[7]: must be in [-100, 100], got nan"},
      {with("logit_bias { key: 7 value: -inf }"),
       "sampling.logit_bias[7]: must be in [-100, 100], got -inf"},
      {with("allowed_tokens: [0, 257]"), "sampling.allowed_tokens[1]: " + vocabulary + "257"},
      {with("banned_tokens: [0, 256, 4294967295]"),
       "sampling.banned_tokens[2]: " + vocabulary + "4294967295"},
      {with("allowed_tokens: [4, 5] banned_tokens: [5, 4]"),
       "sampling.allowed_tokens: must not all be banned"},
      {with(ids("banned_tokens", 0, 256)),
       "sampling.banned_tokens: must leave at least one token of the vocabulary"},
      {with("allowed_tokens: [97, 98] bad_words: ['b', 'a']"),
       "sampling.allowed_tokens: must not all be banned"},
      {with(ids("banned_tokens", 0, 96) + ids("banned_tokens", 98, 256) + "bad_words: 'a'"),
       "sampling.bad_words: must leave at least one token of the vocabulary"},
      {with(ids("banned_tokens", 1, 256), "token_ids: 0 max_tokens: 2 min_tokens: 1"),
       "stop.min_tokens: must be 0 if every token that may be sampled ends the output"},
      {with("allowed_tokens: [4, 256]", "token_ids: 4 max_tokens: 2 min_tokens: 1"),
       "stop.min_tokens: must be 0 if every token that may be sampled ends the output"},
      {with("", "max_tokens: 2 min_tokens: 3"),
       "stop.min_tokens: must be at most max_tokens = 2, got 3"},
      {with("", "min_tokens: 4294967295"),
       "stop.min_tokens: must be at most max_tokens = 256, got 4294967295"},
  });
  ExpectRefused<ScoreCodec>({{"text: 'x' output { echo: true }",
                              "output.echo: must not be set: only Generate and Complete have it"},
                             {"texts { text: 'x' } context_tokens: 1",
                              "context_tokens: must not be set together with texts: it is for one "
                              "text only"},
                             {"text: 'xy' context_tokens: 1 previous {}",
                              "context_tokens: must not be set together with previous: that text "
                              "is the context already"},
                             {"text: 'x' cache_salt: '" + std::string(65, 's') + "'",
                              "cache_salt: must have at most 64 bytes, got 65"}});
  ExpectRefused<CompleteCodec>(
      {{"text: 'x' resumable: true",
        "resumable: must not be set: only a client of Generate has the output with which another "
        "server can resume"}});
}

TEST(BadFieldTest, NamesInAResume) {
  const auto with = [](const std::string& field, int bytes) {
    return absl::StrCat("text: 'x' sampling { seed: 1 } resume { ", field, ": '",
                        std::string(bytes, 'n'), "' }");
  };
  for (const auto& [field, most] : {std::pair("numerics", 128), std::pair("resume_id", 32)}) {
    EXPECT_TRUE(Decode<GenerateCodec>(FromText<v1::GenerateRequest>(with(field, most))).ok());
    ExpectRefused<GenerateCodec>(
        {{with(field, most + 1),
          absl::StrCat("resume.", field, ": must have at most ", most, " bytes, got ", most + 1)}});
  }
}

TEST(BadFieldTest, TheSmallestLimitOfATextIsNamed) {
  const BadRequest length = {Text(8),
                             "text: must have at most 5 tokens (the model's max_seq_len), got 8"};
  ExpectRefused<ScoreCodec>({length}, {.max_seq_len = 5});
  ExpectRefused<EncodeCodec>({length}, {.max_seq_len = 5, .max_batch_tokens = 6});
  ExpectRefused<EncodeCodec>(
      {{Text(8), "text: must have at most 6 tokens (the model's batch.max_tokens), got 8"}},
      {.max_seq_len = 7, .max_batch_tokens = 6});
  ExpectRefused<ScoreCodec>({{Text(901), "text: must have at most 900 tokens, got 901"}},
                            {.max_seq_len = 1000});
}

TEST(BadFieldTest, ATextMayBeAsLongAsTheModelAllows) {
  v1::ScoreRequest score;
  score.set_text("12345678");
  EXPECT_TRUE(Decode<ScoreCodec>(score, {.max_seq_len = 8}).ok());
  v1::EncodeRequest encode;
  encode.set_text("12345678");
  EXPECT_TRUE(Decode<EncodeCodec>(encode, {.max_seq_len = 8, .max_batch_tokens = 8}).ok());
}

}  // namespace
}  // namespace aft::server
