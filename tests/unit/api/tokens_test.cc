// Tests Tokenize and Detokenize, and special tokens in the answer of /tokenize.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/wrappers.pb.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"
#include "server/api/aft/token_codec.h"
#include "server/api/openai/token_exchange.h"
#include "server/config/config.h"
#include "server/registry/served_model.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/proto_text.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

ServedModel ModelWith(std::shared_ptr<const Tokenizer> tokenizer) {
  ServedModel model;
  model.info.vocab_size = 700;
  model.tokenizer = std::move(tokenizer);
  return model;
}

std::vector<int> TokensOverHttp(const ServedModel& model, const nlohmann::json& body) {
  openai::TokenExchange exchange(/*detokenize=*/false, "id");
  static_cast<google::protobuf::StringValue&>(exchange.request()).set_value(body.dump());
  EXPECT_EQ(exchange.CheckRequest(), absl::OkStatus());
  EXPECT_EQ(exchange.Decode(model, {}).status(), absl::OkStatus());
  return nlohmann::json::parse(exchange.text())["tokens"].get<std::vector<int>>();
}

TEST(TokenExchangeTest, SpecialTokensAreLeftOutIfTheRequestSaysSo) {
  const ServedModel framed =
      ModelWith(MakeFramedTokenizer(std::make_shared<FakeTokenizer>(), {1, 2}, {3}));
  const ServedModel plain = ModelWith(std::make_shared<FakeTokenizer>());
  nlohmann::json body = {{"prompt", "ab"}};
  for (const nlohmann::json& special : {nlohmann::json(), nlohmann::json(true)}) {
    EXPECT_THAT(TokensOverHttp(framed, body), ElementsAre(1, 2, 'a', 'b', 3)) << special;
    body["add_special_tokens"] = special;
    EXPECT_THAT(TokensOverHttp(framed, body), ElementsAre(1, 2, 'a', 'b', 3)) << special;
  }
  body["add_special_tokens"] = false;
  EXPECT_THAT(TokensOverHttp(framed, body), ElementsAre('a', 'b'));
  EXPECT_THAT(TokensOverHttp(plain, body), ElementsAre('a', 'b'));
  // An empty text has them too.
  body["prompt"] = "";
  EXPECT_THAT(TokensOverHttp(framed, body), ElementsAre());
  body.erase("add_special_tokens");
  EXPECT_THAT(TokensOverHttp(framed, body), ElementsAre(1, 2, 3));
  EXPECT_THAT(TokensOverHttp(plain, body), ElementsAre());
}

TEST(TokenExchangeTest, AFieldMayHaveAValueThatAsksForNothing) {
  for (const bool strings : {false, true}) {
    openai::TokenExchange exchange(/*detokenize=*/false, "id");
    const nlohmann::json body = {{"prompt", "ab"}, {"return_token_strs", strings}};
    static_cast<google::protobuf::StringValue&>(exchange.request()).set_value(body.dump());
    EXPECT_EQ(exchange.CheckRequest().ok(), !strings);
  }
}

// Returns the answer of Tokenize or Detokenize.
template <typename Codec>
auto Answer(const std::string& request,
            std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<FakeTokenizer>()) {
  LimitsConfig limits;
  limits.max_prompt_bytes = 6;
  limits.max_prompt_tokens = 5;
  ServedModel model;
  model.config.name = "m";
  model.info.vocab_size = 300;
  model.tokenizer = std::move(tokenizer);
  return Codec::Answer(FromText<typename Codec::Request>(request), limits, model);
}

TEST(TokenCodecTest, EveryIdHasTheEndOfItsPiece) {
  const auto ids = Answer<TokenizeCodec>("raw: 'h\xFF\xC3'");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->model(), "m");
  EXPECT_THAT(ids->token_ids(), ElementsAre('h', 255, 0xC3));
  EXPECT_THAT(ids->byte_ends(), ElementsAre(1, 2, 3));
  const auto text = Answer<DetokenizeCodec>("token_ids: [104, 299, 255, 256, 105]");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->raw(), "h\xFFi");
  EXPECT_EQ(text->text(), "h\xEF\xBF\xBDi");
  EXPECT_THAT(text->byte_ends(), ElementsAre(1, 1, 2, 2, 3));
  EXPECT_EQ(Answer<TokenizeCodec>("text: ''")->token_ids_size(), 0);
  EXPECT_EQ(Answer<DetokenizeCodec>("")->raw(), "");
}

TEST(TokenCodecTest, RefusalsNameTheField) {
  const auto error = [](const auto& answer) { return std::string(answer.status().message()); };
  EXPECT_EQ(error(Answer<TokenizeCodec>("")), "text_to_tokenize: one of text, raw must be set");
  EXPECT_EQ(error(Answer<TokenizeCodec>("text: '1234567'")),
            "text: must have at most 6 bytes, got 7");
  EXPECT_EQ(error(Answer<TokenizeCodec>("raw: '123456'")),
            "raw: must have at most 5 tokens, got 6");
  EXPECT_EQ(error(Answer<DetokenizeCodec>("token_ids: [1, 300]")),
            "token_ids[1]: must be below 300, the size of the vocabulary, got 300");
  EXPECT_EQ(error(Answer<DetokenizeCodec>("token_ids: [1, 2, 3, 4, 5, 6]")),
            "token_ids: must have at most 5 tokens, got 6");
  const auto words = std::make_shared<FakeTokenizer>(std::vector<std::string>{"abc"});
  EXPECT_EQ(Answer<DetokenizeCodec>("token_ids: [257, 257]", words)->raw(), "abcabc");
  EXPECT_EQ(error(Answer<DetokenizeCodec>("token_ids: [257, 257, 104]", words)),
            "token_ids: must stand for at most 6 bytes, more by token_ids[2]");
  for (const auto& status : {Answer<TokenizeCodec>("text: 'x'", nullptr).status(),
                             Answer<DetokenizeCodec>("token_ids: 1", nullptr).status()}) {
    EXPECT_EQ(status, absl::FailedPreconditionError("model \"m\" has no tokenizer"));
  }
}

// The proto and docs/troubleshooting.md tell this number to clients whose gRPC has the default
// limit of a received message. Each of these bytes becomes three, because it is not valid UTF-8.
TEST(TokenCodecTest, AnswersForHalfAMillionTokensHaveAtMost4MiB) {
  constexpr size_t kTokens = 500'000;
  constexpr size_t kReceived = size_t{4} << 20;
  const ServedModel model = ModelWith(std::make_shared<FakeTokenizer>());
  v1::TokenizeRequest text;
  text.set_raw(std::string(kTokens, '\xff'));
  const auto ids = TokenizeCodec::Answer(text, {}, model);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_LE(ids->ByteSizeLong(), kReceived);
  v1::DetokenizeRequest request;
  *request.mutable_token_ids() = ids->token_ids();
  const auto bytes = DetokenizeCodec::Answer(request, {}, model);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->raw(), text.raw());
  EXPECT_LE(bytes->ByteSizeLong(), kReceived);
}

// The bytes of the ids differ from those of the text here.
TEST(TokenCodecTest, TheEndsOfPiecesAreOffsetsInTheBytesOfTheIds) {
  nlohmann::json json =
      nlohmann::json::parse(ReadBytes("tests/unit/model/data/bpe/added/tokenizer.json"));
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = nlohmann::json::array();
  const TempFolder folder;
  WriteBytes(folder.File("nfc"), json.dump());
  const auto nfc = LoadTokenizerJson(folder.File("nfc"), folder.File("none"));
  ASSERT_TRUE(nfc.ok()) << nfc.status();
  const auto chars = MakeCharTokenizer({"a", "<unk>", "b"});
  ASSERT_TRUE(chars.ok()) << chars.status();
  for (const auto& [tokenizer, bytes] : {std::pair(*nfc, "a\u00e9b"), {*chars, "ab"}}) {
    const ServedModel model = ModelWith(tokenizer);
    const auto ids =
        TokenizeCodec::Answer(FromText<v1::TokenizeRequest>("text: 'ae\\314\\201b'"), {}, model);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const auto text =
        DetokenizeCodec::Answer(FromText<v1::DetokenizeRequest>(absl::StrCat(
                                    "token_ids: [", absl::StrJoin(ids->token_ids(), ","), "]")),
                                {}, model);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->raw(), bytes);
    EXPECT_THAT(text->byte_ends(), ElementsAreArray(ids->byte_ends()));
    EXPECT_EQ(*text->byte_ends().rbegin(), text->raw().size());
  }
}

}  // namespace
}  // namespace aft::server
