#include "model/tokenizer/train_bpe.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;

Json ReadJson(const std::string& path) { return Json::parse(std::ifstream(path)); }

std::vector<std::string> TokensById(const Json& vocabulary) {
  std::vector<std::string> tokens(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) tokens.at(id.get<size_t>()) = token;
  return tokens;
}

// Made by Hugging Face's tokenizers: tests/unit/model/data/bpe/make_goldens.py.
TEST(TrainBpeTest, LearnsTheMergesThatHuggingFaceLearns) {
  const std::string folder = "tests/unit/model/data/bpe/";
  std::vector<std::string> texts;
  for (const char* name : {"samples.json", "hostile.json"}) {
    for (const Json& sample : ReadJson(folder + name)) texts.push_back(sample["text"]);
  }
  const Json golden = ReadJson(folder + "trained.json");
  const std::vector<absl::string_view> views(texts.begin(), texts.end());
  const Json made = Json::parse(TrainBpe(views, 2000));
  EXPECT_EQ(TokensById(made["model"]["vocab"]), golden[0].get<std::vector<std::string>>());
  EXPECT_EQ(made["model"]["merges"], golden[1]);
}

TEST(TrainBpeTest, StopsWhereNoPairOccursTwice) {
  const Json made = Json::parse(TrainBpe({"abab xyz"}, 1000));
  EXPECT_THAT(made["model"]["merges"], ElementsAre("a b"));
  EXPECT_EQ(made["model"]["vocab"].size(), 257U);
}

TEST(TrainBpeTest, TrainsOnBytesThatAreNotUtf8AndLoads) {
  const std::string text = "\xFF\xFE\xFF\xFE\xFF\xFE caf\xC3\xA9 caf\xC3\xA9 \xC3";
  const TempFolder folder;
  std::ofstream(folder.File(kTokenizerFileName)) << TrainBpe({text}, 280);
  const auto tokenizer = LoadTokenizer("bpe", folder.path(), 280);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), -1);
  const auto ids = (*tokenizer)->Encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_LT(ids->size(), text.size() / 2);
  std::string back;
  for (const int32_t id : *ids) absl::StrAppend(&back, (*tokenizer)->TokenBytes(id));
  EXPECT_EQ(back, text);
}

// A piece of a megabyte must not be read again for every merge, so long pieces are left out.
TEST(TrainBpeTest, PiecesThatAreTooLongAreLeftOut) {
  const Json made = Json::parse(TrainBpe({std::string(257, 'a'), " bb bb"}, 300));
  EXPECT_THAT(made["model"]["merges"], ElementsAre("b b", "Ġ bb"));
  const Json longest = Json::parse(TrainBpe({std::string(256, 'a')}, 257));
  EXPECT_THAT(longest["model"]["merges"], ElementsAre("a a"));
}

TEST(CollectCharactersTest, KeepsTheMostFrequentAndOneForTheRest) {
  const std::vector<absl::string_view> texts = {"bbb aa\xFF",
                                                "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"
                                                "cd"};
  EXPECT_EQ(CollectCharacters(texts, 5), "[\"<unk>\",\"\xC3\xA9\",\"b\",\"a\",\" \"]\n");
  EXPECT_EQ(CollectCharacters(texts, 100),
            "[\"<unk>\",\"\xC3\xA9\",\"b\",\"a\",\" \",\"c\",\"d\"]\n");
  EXPECT_EQ(CollectCharacters(texts, 1), "[\"<unk>\"]\n");
}

}  // namespace
}  // namespace aft
