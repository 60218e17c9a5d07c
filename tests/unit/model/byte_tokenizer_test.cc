#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {
namespace {

TEST(ByteTokenizerTest, TokensAreTheBytesThemselves) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->eos_id(), -1);
  std::vector<int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  const std::string bytes(ids.begin(), ids.end());
  EXPECT_EQ(*tokenizer->Encode(bytes), ids);
  EXPECT_THAT(*tokenizer->Encode("Az\xC3\xA9"), testing::ElementsAre(65, 122, 0xC3, 0xA9));
  EXPECT_THAT(*tokenizer->Encode(""), testing::IsEmpty());
  for (const int32_t id : ids) {
    EXPECT_EQ(tokenizer->TokenBytes(id), bytes.substr(static_cast<size_t>(id), 1));
  }
}

TEST(ByteTokenizerDeathTest, RefusesIdsOutsideTheVocabulary) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  EXPECT_DEATH(tokenizer->TokenBytes(256), "AFT_CHECK");
  EXPECT_DEATH(tokenizer->TokenBytes(-1), "AFT_CHECK");
}

}  // namespace
}  // namespace aft
