#include "model/tokenizer/byte_tokenizer.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    const absl::string_view bytes = tokenizer.TokenBytes(id);
    text.append(bytes.data(), bytes.size());
  }
  return text;
}

TEST(ByteTokenizerTest, HasOneTokenPerByteAndNoEndOfText) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->eos_id(), -1);
}

TEST(ByteTokenizerTest, TokenIdIsTheValueOfTheByte) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  EXPECT_THAT(*tokenizer->Encode("Az"), testing::ElementsAre(65, 122));
  EXPECT_THAT(*tokenizer->Encode("\xC3\xA9"), testing::ElementsAre(0xC3, 0xA9));
  EXPECT_THAT(*tokenizer->Encode(absl::string_view("\0\xFF", 2)), testing::ElementsAre(0, 255));
  EXPECT_THAT(*tokenizer->Encode(""), testing::IsEmpty());
}

TEST(ByteTokenizerTest, EveryTokenStandsForOneByte) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  for (int32_t id = 0; id < 256; ++id) {
    const absl::string_view bytes = tokenizer->TokenBytes(id);
    ASSERT_EQ(bytes.size(), 1U);
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]), id);
  }
}

TEST(ByteTokenizerTest, RandomBytesRoundTripExactly) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  std::mt19937 random(1);
  for (size_t length : {1U, 2U, 17U, 1000U, 65536U}) {
    std::string text(length, '\0');
    for (char& c : text) c = static_cast<char>(random() & 0xFF);
    const std::vector<int32_t> ids = *tokenizer->Encode(text);
    EXPECT_EQ(ids.size(), length);
    EXPECT_EQ(Decode(*tokenizer, ids), text);
  }
}

TEST(ByteTokenizerDeathTest, RefusesIdsOutsideTheVocabulary) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  EXPECT_DEATH(tokenizer->TokenBytes(256), "AFT_CHECK");
  EXPECT_DEATH(tokenizer->TokenBytes(-1), "AFT_CHECK");
}

}  // namespace
}  // namespace aft
