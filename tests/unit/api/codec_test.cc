// Tests what codecs make of valid requests and of the engine's answers. bad_field_test.cc tests
// that each field out of range is refused with its name.

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/score_codec.h"
#include "tests/support/proto_text.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

template <typename Codec>
auto DecodeProto(const std::string& text, const ModelFacts& facts = {}, Codec* codec = nullptr) {
  return Decode<Codec>(FromText<typename Codec::Request>(text), facts, {}, codec);
}

TEST(GenerateCodecTest, UnsetFieldsTakeTheDocumentedDefaults) {
  const auto request = DecodeProto<GenerateCodec>("text: 'hi'");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(request->sampling.temperature, 1.0F);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.top_p, 1.0F);
  EXPECT_EQ(request->sampling.min_p, 0.0F);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0F);
  EXPECT_EQ(request->sampling.presence_penalty, 0.0F);
  EXPECT_EQ(request->sampling.frequency_penalty, 0.0F);
  EXPECT_EQ(request->sampling.penalty_decay, 1.0F);
  EXPECT_FALSE(request->sampling.temperature_last);
  EXPECT_NE(request->sampling.seed, DecodeProto<GenerateCodec>("text: 'hi'")->sampling.seed);
  EXPECT_EQ(request->sampling.top_logprobs, -1);
  EXPECT_EQ(request->stop.max_tokens, 256);
  EXPECT_TRUE(request->stop.strings.empty());
  EXPECT_FALSE(request->stop.include_stop_string);
  EXPECT_FALSE(request->stop.ignore_eos);
}

std::vector<std::string> RulesOf(const std::string& sampling, const std::string& stop = "",
                                 bool* only_these = nullptr) {
  const auto request =
      DecodeProto<GenerateCodec>("text: 'hi' sampling { " + sampling + " } stop { " + stop + " }");
  EXPECT_TRUE(request.ok()) << request.status();
  std::vector<std::string> rules;
  if (!request.ok() || request->sampling.rules == nullptr) return rules;
  if (only_these != nullptr) *only_these = request->sampling.rules->only_these;
  for (const LogitRule& rule : request->sampling.rules->rules) {
    rules.push_back(absl::StrCat(rule.id, ":", rule.bias, rule.ends != 0 ? " ends" : ""));
  }
  return rules;
}

TEST(GenerateCodecTest, EachTokenHasOneRuleAndRulesAreSortedById) {
  bool only_these = true;
  EXPECT_THAT(RulesOf("top_k: 3", "token_ids: 5"), ElementsAre());
  EXPECT_THAT(RulesOf("logit_bias { key: 9 value: -100 } logit_bias { key: 2 value: 100 }"
                      "banned_tokens: [7, 2, 7]",
                      "", &only_these),
              ElementsAre("2:-inf", "7:-inf", "9:-100"));
  EXPECT_FALSE(only_these);
  EXPECT_THAT(RulesOf("logit_bias { key: 9 value: 1.5 } logit_bias { key: 2 value: 1 }"
                      "allowed_tokens: [8, 9, 8, 3] banned_tokens: [3, 4]",
                      "", &only_these),
              ElementsAre("8:0", "9:1.5"));
  EXPECT_TRUE(only_these);
}

TEST(GenerateCodecTest, WithMinTokensTheTokensThatEndTheOutputAreMarked) {
  // FakeTokenizer's end of text is 256.
  EXPECT_THAT(RulesOf("", "token_ids: [9, 3] min_tokens: 1"),
              ElementsAre("3:0 ends", "9:0 ends", "256:0 ends"));
  EXPECT_THAT(RulesOf("", "token_ids: 3 min_tokens: 1 ignore_eos: true"), ElementsAre("3:0 ends"));
  EXPECT_THAT(RulesOf("", "min_tokens: 0"), ElementsAre());
  EXPECT_THAT(
      RulesOf("logit_bias { key: 3 value: 2 } banned_tokens: 256", "token_ids: 3 min_tokens: 1"),
      ElementsAre("3:2 ends", "256:-inf ends"));
  EXPECT_THAT(RulesOf("allowed_tokens: [3, 4]", "token_ids: [3, 5] min_tokens: 1"),
              ElementsAre("3:0 ends", "4:0"));
  EXPECT_EQ(
      DecodeProto<GenerateCodec>("text: 'x' stop { max_tokens: 7 min_tokens: 7 }")->stop.min_tokens,
      7);
}

TEST(GenerateCodecTest, AnEchoHasTheIdsAndTheTextOfThePromptAndIsCharged) {
  ServedModel model;
  model.info.vocab_size = 300;  // padded beyond the tokenizer's 257
  model.tokenizer = std::make_shared<FakeTokenizer>();
  const auto message =
      FromText<v1::GenerateRequest>("tokens { ids: [104, 255, 299, 105] } output { echo: true }");
  GenerateCodec codec;
  v1::Started started;
  const auto request = codec.Decode(message, {}, model, started);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(started.prompt().token_ids(), ElementsAre(104, 255, 299, 105));
  EXPECT_EQ(started.prompt().text(), "h\xEF\xBF\xBDi");
  EXPECT_GT(codec.kept_tokens(*request), size_t{8});
  GenerateCodec without;
  v1::Started silent;
  const auto plain = without.Decode(FromText<v1::GenerateRequest>("text: 'hi'"), {}, model, silent);
  EXPECT_FALSE(silent.has_prompt());
  EXPECT_EQ(without.kept_tokens(*plain), 2U);
  LimitsConfig limits;
  limits.max_prompt_bytes = 5;  // three are the replacement character
  v1::Started none;
  EXPECT_EQ(GenerateCodec().Decode(message, limits, model, none).status().message(), "");
  limits.max_prompt_bytes = 4;
  EXPECT_EQ(GenerateCodec().Decode(message, limits, model, none).status().message(),
            "output.echo: must not be set: the prompt's text has 5 bytes, at most 4 are repeated");
}

TEST(GenerateCodecTest, TheNodesOfStopStringsAreCharged) {
  const GenerateCodec codec;
  const auto kept = [&](const std::string& stop) {
    return codec.kept_tokens(*DecodeProto<GenerateCodec>("text: 'hi' stop { " + stop + " }"));
  };
  EXPECT_EQ(kept("strings: 'abc' strings: 'de'") * sizeof(TokenId),
            kept("") * sizeof(TokenId) + size_t{28} * 5);
}

TEST(CompleteCodecTest, AnswersAreWholeAndInOrder) {
  CompleteCodec codec;
  ASSERT_TRUE(
      DecodeProto<CompleteCodec>("text: 'x' n: 2 output { top_logprobs: 0 }", {}, &codec).ok());
  codec.ExpectSequences(codec.sequences());
  const auto part = [](uint32_t index, TokenId id, const char* text) {
    TokenDelta delta;
    delta.first_index = index;
    delta.tokens.emplace_back().id = id;
    delta.text = text;
    return delta;
  };
  codec.Append(part(0, 7, "b"), 1);
  codec.Append(part(0, 5, "a"), 0);
  codec.Append(part(1, 8, "c"), 1);
  codec.Append({.first_index = 2, .tokens = {}, .text = "d"}, 1);
  v1::CompleteResponse response;
  EXPECT_FALSE(codec.Take(response));
  EXPECT_GT(codec.pending_bytes(), 0U);
  Outcome outcome;
  outcome.limit = "two";
  codec.AppendFinished(outcome, 1, nullptr);
  outcome.limit = "one";
  codec.AppendFinished(outcome, 0, nullptr);
  codec.TakeAnswers(response);
  ASSERT_EQ(response.answers_size(), 2);
  EXPECT_EQ(response.answers(0).text(), "a");
  EXPECT_EQ(response.answers(0).finished().limit(), "one");
  EXPECT_EQ(response.answers(1).text(), "bcd");
  EXPECT_THAT(response.answers(1).token_ids(), ElementsAre(7, 8));
  EXPECT_EQ(response.answers(1).logprobs_size(), 2);
  EXPECT_EQ(response.answers(1).finished().limit(), "two");
  EXPECT_EQ(codec.pending_bytes(), 0U);
}

TEST(GenerateCodecTest, ZeroDiffersFromUnset) {
  const auto request = DecodeProto<GenerateCodec>(
      "raw: 'hi' sampling { temperature: 0 seed: 0 } output { top_logprobs: 0 }");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(request->sampling.temperature, 0.0F);
  EXPECT_EQ(request->sampling.seed, 0);
  EXPECT_EQ(request->sampling.top_logprobs, 0);
}

TEST(GenerateCodecTest, AcceptsEveryFieldAtTheEdgeOfItsRange) {
  auto message = FromText<v1::GenerateRequest>(
      "tokens { ids: [0, 256] }"
      "sampling { temperature: 100 top_k: 4294967295 top_p: 1 min_p: 1 repetition_penalty: 10"
      "           presence_penalty: -2 frequency_penalty: 2 penalty_decay: 1 seed: "
      "18446744073709551615 }"
      "stop { max_tokens: 1048576 include_stop_string: true ignore_eos: true }"
      "output { top_logprobs: 20 }");
  message.set_cache_salt(std::string(64, 's'));
  for (int i = 0; i < 16; ++i) message.mutable_stop()->add_strings(std::string(256, 'x'));
  for (int i = 0; i < 64; ++i) message.mutable_stop()->add_token_ids(256);
  const auto request = Decode<GenerateCodec>(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(0, 256));
  EXPECT_EQ(request->sampling.temperature, 100.0F);
  EXPECT_EQ(request->sampling.top_k, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(request->sampling.min_p, 1.0F);
  EXPECT_EQ(request->sampling.repetition_penalty, 10.0F);
  EXPECT_EQ(request->sampling.presence_penalty, -2.0F);
  EXPECT_EQ(request->sampling.frequency_penalty, 2.0F);
  EXPECT_EQ(request->sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(request->sampling.top_logprobs, 20);
  EXPECT_EQ(request->stop.max_tokens, 1'048'576);
  EXPECT_EQ(request->stop.strings, std::vector<std::string>(16, std::string(256, 'x')));
  EXPECT_EQ(request->stop.token_ids, std::vector<TokenId>(64, 256));
  EXPECT_TRUE(request->stop.include_stop_string);
  EXPECT_TRUE(request->stop.ignore_eos);
  EXPECT_EQ(request->cache_salt, std::string(64, 's'));
}

TEST(GenerateCodecTest, NamesTheCharacterThatTheVocabularyLacks) {
  auto tokenizer = MakeCharTokenizer({"h"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(DecodeProto<GenerateCodec>("text: 'hi'", {.tokenizer = *std::move(tokenizer)}).status(),
            absl::InvalidArgumentError(
                "text: character 'i' (U+0069) at byte 1 is not in the model's vocabulary"));
}

TEST(ScoreCodecTest, TheNumberOfAlternativesIsTheRequestedOne) {
  const auto unset = DecodeProto<ScoreCodec>("text: 'hi'");
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_THAT(unset->text, ElementsAre('h', 'i'));
  EXPECT_EQ(unset->top_logprobs, 0);
  EXPECT_EQ(DecodeProto<ScoreCodec>("text: 'hi' output { top_logprobs: 2 }")->top_logprobs, 2);
}

TEST(ScoreCodecTest, AContextAndItsSaltArrive) {
  EXPECT_EQ(DecodeProto<ScoreCodec>("text: 'hi'")->context, 0);
  const auto request = DecodeProto<ScoreCodec>("text: 'hi' context_tokens: 1 cache_salt: 's'");
  EXPECT_EQ(request->context, 1);
  EXPECT_EQ(request->cache_salt, "s");
}

template <typename Codec>
ServiceClass ClassOf(const std::string& priority) {
  const auto request = DecodeProto<Codec>("text: 'x'" + priority);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->service_class : ServiceClass();
}

TEST(PriorityTest, IsTheRequestedOneOrTheDefaultOfTheMethod) {
  EXPECT_EQ(ClassOf<GenerateCodec>(""), ServiceClass::kNormal);
  EXPECT_EQ(ClassOf<ScoreCodec>(""), ServiceClass::kBatch);
  EXPECT_EQ(ClassOf<EncodeCodec>(""), ServiceClass::kNormal);
  const std::pair<const char*, ServiceClass> names[] = {{"INTERACTIVE", ServiceClass::kInteractive},
                                                        {"NORMAL", ServiceClass::kNormal},
                                                        {"BATCH", ServiceClass::kBatch}};
  for (const auto& [name, service_class] : names) {
    const std::string priority = absl::StrCat(" priority: PRIORITY_", name);
    EXPECT_EQ(ClassOf<GenerateCodec>(priority), service_class);
    EXPECT_EQ(ClassOf<ScoreCodec>(priority), service_class);
    EXPECT_EQ(ClassOf<EncodeCodec>(priority), service_class);
  }
}

TEST(EncodeCodecTest, PoolingAndNormalisationAreTheRequestedOnes) {
  const auto unset = DecodeProto<EncodeCodec>("raw: 'hi'", {.max_batch_tokens = 2});
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_THAT(unset->text, ElementsAre('h', 'i'));
  EXPECT_EQ(unset->pooling, Pooling::kNone);
  EXPECT_FALSE(unset->normalize);
  const std::pair<const char*, Pooling> names[] = {
      {"MEAN", Pooling::kMean}, {"FIRST", Pooling::kFirst}, {"LAST", Pooling::kLast}};
  for (const auto& [name, pooling] : names) {
    const auto request =
        DecodeProto<EncodeCodec>(absl::StrCat("text: 'x' normalize: true pooling: POOLING_", name));
    EXPECT_EQ(request->pooling, pooling);
    EXPECT_TRUE(request->normalize);
  }
}

// Two consecutive parts of an output. The second one has alternatives.
const TokenDelta kFirst = {
    .first_index = 5,
    .tokens = {{.id = 1, .logprob = -1.0F, .top = {}}, {.id = 2, .logprob = -2.0F, .top = {}}},
    .text = "ab"};
const TokenDelta kSecond = {
    .first_index = 7,
    .tokens = {{.id = 3, .logprob = -0.5F, .top = {{.id = 9, .logprob = -0.25F}}}},
    .text = "c"};

TEST(GenerateCodecTest, AppendedDeltasBecomeOne) {
  GenerateCodec codec;
  codec.Append(kFirst);
  const size_t first = codec.pending_bytes();
  EXPECT_GT(first, 0);
  codec.Append(kSecond);
  EXPECT_GT(codec.pending_bytes(), first);
  v1::GenerateResponse response;
  ASSERT_TRUE(codec.Take(response));
  EXPECT_EQ(codec.pending_bytes(), 0);
  ExpectText(response, "delta { first_index: 5 token_ids: [1, 2, 3] text: 'abc' }");
  EXPECT_FALSE(codec.Take(response));
}

TEST(GenerateCodecTest, LogProbabilitiesAreSentOnRequest) {
  GenerateCodec codec;
  ASSERT_TRUE(DecodeProto("text: 'hi' output { top_logprobs: 1 }", {}, &codec).ok());
  codec.Append(kSecond);
  v1::GenerateResponse response;
  ASSERT_TRUE(codec.Take(response));
  ExpectText(response,
             "delta { first_index: 7 token_ids: 3 text: 'c'"
             "        logprobs { logprob: -0.5 top { token_id: 9 logprob: -0.25 } } }");
}

TEST(ScoreCodecTest, AppendedChunksBecomeOne) {
  ScoreCodec codec;
  codec.Append(kFirst);
  codec.Append(kSecond);
  v1::ScoreResponse response;
  ASSERT_TRUE(codec.Take(response));
  ExpectText(response,
             "chunk { first_index: 5 token_ids: [1, 2, 3]"
             "        logprobs { logprob: -1 } logprobs { logprob: -2 }"
             "        logprobs { logprob: -0.5 top { token_id: 9 logprob: -0.25 } } }");
}

template <typename Codec>
void ExpectSizeIsAboutRight(Codec codec) {
  TokenDelta delta;
  for (int i = 0; i < 100; ++i) {
    delta.tokens.push_back({.id = i, .logprob = -1.0F, .top = {{.id = i, .logprob = -1.0F}}});
    delta.text += "x";
  }
  codec.Append(delta);
  const size_t estimate = codec.pending_bytes();
  typename Codec::Response message;
  ASSERT_TRUE(codec.Take(message));
  EXPECT_GE(estimate * 2, message.ByteSizeLong());
  EXPECT_LE(estimate, message.ByteSizeLong() * 2);
}

TEST(CodecTest, TheSizeOfAPartIsAboutWhatItCostsOnTheWire) {
  GenerateCodec codec;
  ASSERT_TRUE(DecodeProto("text: 'hi' output { top_logprobs: 1 }", {}, &codec).ok());
  ExpectSizeIsAboutRight(codec);
  ExpectSizeIsAboutRight(ScoreCodec());
}

// Returns the messages in which a client receives `values`.
std::vector<v1::Vectors> Send(std::vector<float> values, int64_t width) {
  EncodeCodec codec;
  // The text has one token for each vector.
  const std::string text(values.size() / static_cast<size_t>(width), 'x');
  EXPECT_TRUE(
      DecodeProto(absl::StrCat("text: '", text, "'"), {.vector_width = width}, &codec).ok());
  codec.ExpectSequences(1);
  EXPECT_EQ(codec.held_bytes(), values.size() * sizeof(float));
  codec.Append(std::move(values));
  std::vector<v1::Vectors> messages;
  for (v1::EncodeResponse response; codec.Take(response);) messages.push_back(response.vectors());
  EXPECT_EQ(codec.held_bytes(), 0U);
  return messages;
}

TEST(EncodeCodecTest, VectorsAreNeverCut) {
  constexpr size_t kWidth = 1000;
  std::vector<float> values(200 * kWidth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<float> sent;
  for (const v1::Vectors& message : Send(values, kWidth)) {
    EXPECT_EQ(message.first_index() * kWidth, sent.size());
    EXPECT_EQ(message.values_size() % kWidth, 0U);
    EXPECT_LE(message.ByteSizeLong(), size_t{34} << 10);
    sent.insert(sent.end(), message.values().begin(), message.values().end());
  }
  EXPECT_EQ(sent, values);
}

TEST(EncodeCodecTest, AVectorLargerThanAMessageGoesAlone) {
  const std::vector<v1::Vectors> messages = Send(std::vector<float>(2 * 100'000, 1.0F), 100'000);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[1].first_index(), 1U);
  EXPECT_EQ(messages[1].values_size(), 100'000);
}

template <typename Codec>
void ExpectFinished(const Outcome& outcome, const std::string& text) {
  typename Codec::Response response;
  Codec().Finish(outcome, *response.mutable_finished());
  ExpectText(response, "finished { " + text + " }");
}

TEST(CodecTest, FinishedSumsUp) {
  Outcome outcome;
  outcome.timings.queue = std::chrono::microseconds(5);
  outcome.timings.first_token = std::chrono::microseconds(6);
  outcome.timings.total = std::chrono::hours(2);
  const std::string timings = " timings { queue_us: 5 first_token_us: 6 total_us: 7200000000 } ";
  outcome.usage = {.prompt_tokens = 3, .generated_tokens = 4};
  outcome.usage.cached_tokens = 2;
  outcome.usage.cache_miss = CacheMiss::kDiverged;
  outcome.usage.diverged_at = 33;
  const std::string usage =
      " usage { prompt_tokens: 3 generated_tokens: 4 cached_tokens: 2 "
      "cache_miss: CACHE_MISS_DIVERGED diverged_at: 33 } ";
  outcome.reason = FinishReason::kEos;
  ExpectFinished<GenerateCodec>(outcome, "reason: FINISH_REASON_EOS" + usage + timings);
  outcome.reason = FinishReason::kLength;
  outcome.limit = "stop.max_tokens=3";
  ExpectFinished<GenerateCodec>(
      outcome, "reason: FINISH_REASON_LENGTH limit: 'stop.max_tokens=3'" + usage + timings);
  outcome.reason = FinishReason::kStop;
  outcome.stop_string = "end";
  ExpectFinished<GenerateCodec>(outcome,
                                "reason: FINISH_REASON_STOP stop_string: 'end'" + usage + timings);
  outcome.stop_token_id = 0;
  ExpectFinished<GenerateCodec>(outcome,
                                "reason: FINISH_REASON_STOP stop_token_id: 0" + usage + timings);
  outcome.batch_rows = 4;
  ExpectFinished<EncodeCodec>(outcome, "batch_rows: 4" + timings);
}

TEST(ScoreCodecTest, FinishedSumsUp) {
  Outcome outcome;
  outcome.usage.scored_tokens = 4;
  outcome.usage.cached_tokens = 3;
  outcome.scored_bytes = 10;
  outcome.logprob = -8;
  v1::ScoreFinished message;
  ScoreCodec().Finish(outcome, message);
  EXPECT_DOUBLE_EQ(message.perplexity(), std::exp(2.0));
  message.clear_perplexity();
  ExpectText(message,
             "scored_tokens: 4 logprob: -8 scored_bytes: 10 timings {} "
             "usage { scored_tokens: 4 cached_tokens: 3 }");
  ExpectFinished<ScoreCodec>(Outcome(), "timings {} usage {}");  // no perplexity
}

}  // namespace
}  // namespace aft::server
