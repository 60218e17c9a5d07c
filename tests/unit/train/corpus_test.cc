#include "model/train/corpus.h"

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/train_bpe.h"
#include "model/train/train_config.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

std::string WriteText(const std::string& name, int64_t bytes) {
  static const TempFolder folder;
  const std::string path = folder.File(name);
  std::ofstream file(path, std::ios::binary);
  for (int64_t i = 0; i < bytes; ++i) file.put(static_cast<char>(i % 251));
  return path;
}

absl::StatusOr<Corpus> ReadByteCorpus(const std::vector<std::string>& paths,
                                      int64_t min_part_tokens) {
  const auto files = ReadTextFiles(paths, 0.1);
  if (!files.ok()) return files.status();
  return MakeCorpus(*files, *MakeByteTokenizer(), min_part_tokens);
}

TEST(CorpusTest, HoldsOutTheTailOfEveryText) {
  const auto corpus = ReadByteCorpus({WriteText("a.txt", 1000), WriteText("b.txt", 200)}, 10);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->texts[0].train_tokens, 900);
  EXPECT_EQ(corpus->texts[1].train_tokens, 180);
  EXPECT_EQ(corpus->train_tokens(), 1080);
  EXPECT_EQ(corpus->held_out_tokens(), 120);
}

TEST(CorpusTest, NamesAMissingFileAndATooShortOne) {
  EXPECT_THAT(ReadTextFiles({"no/such/file.txt"}, 0.1),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("no/such/file.txt")));
  const TempFolder folder;
  EXPECT_THAT(ReadTextFiles({folder.path()}, 0.1),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr(folder.path())));
  EXPECT_THAT(ReadByteCorpus({WriteText("tiny.txt", 50)}, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("tiny.txt")));
}

TEST(CorpusTest, EachPartNeedsMoreTokensThanASegment) {
  TrainConfig config;
  config.texts = {WriteText("short.txt", 128)};
  config.held_out = 0.25;  // 32 tokens
  const auto read = [&](int64_t segment) {
    config.segment = segment;
    return ReadCorpus(config, [&](const std::vector<absl::string_view>&) {
      return LoadTokenizer("bytes", "", 256);
    });
  };
  EXPECT_TRUE(read(31).ok());
  EXPECT_THAT(read(32), StatusIs(absl::StatusCode::kInvalidArgument,
                                 testing::HasSubstr("short.txt: 128 tokens are too few")));
}

TEST(CorpusTest, ATokenizerIsMadeFromTheTrainingPartsOnly) {
  TrainConfig config;
  config.texts = {WriteText("short.txt", 128), WriteText("shorter.txt", 64)};
  config.held_out = 0.25;
  config.segment = 8;
  const auto make = [](const std::vector<absl::string_view>& training_texts) {
    EXPECT_THAT(training_texts, testing::ElementsAre(testing::SizeIs(96), testing::SizeIs(48)));
    return LoadTokenizer("bytes", "", 256);
  };
  EXPECT_TRUE(ReadCorpus(config, make).ok());
}

TEST(CorpusTest, CutsNoCharacterInTwo) {
  const TempFolder folder;
  int moved = 0;
  for (size_t ascii = 0; ascii < 8; ++ascii) {
    std::string text(ascii, 'x');
    for (int i = 0; i < 40; ++i) text += "\xF0\x9F\x98\x80\xE2\x82\xAC\xC3\xA9";
    text.append(8 - ascii, 'x');  // each round cuts at another byte of the nine
    std::ofstream(folder.File("text"), std::ios::binary) << text;
    const auto files = ReadTextFiles({folder.File("text")}, 0.1);
    ASSERT_TRUE(files.ok()) << files.status();
    const TextFile& file = files->front();
    EXPECT_NE(static_cast<unsigned char>(file.bytes[file.train_bytes]) & 0xC0, 0x80) << ascii;
    EXPECT_NEAR(static_cast<double>(file.train_bytes), 0.9 * static_cast<double>(text.size()), 4);
    moved += file.train_bytes != 332 ? 1 : 0;  // 368 bytes without a tenth of them
  }
  EXPECT_EQ(moved, 6);
}

TEST(CorpusTest, CountsTheBytesOfTokensAndEncodesBothPartsByThemselves) {
  const std::string vocabulary = TrainBpe({"abababab cdcd cdcd"}, 260);
  const TempFolder folder;
  std::ofstream(folder.File("tokenizer.json")) << vocabulary;
  const auto tokenizer = LoadTokenizer("bpe", folder.path(), 260);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const TextFile file{.path = "text", .bytes = "abababab cdcdab", .train_bytes = 7};
  const auto corpus = MakeCorpus({file}, **tokenizer, 1);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const Corpus::Text& text = corpus->texts[0];
  const auto train = (*tokenizer)->Encode("abababa"), held_out = (*tokenizer)->Encode("b cdcdab");
  ASSERT_TRUE(train.ok() && held_out.ok());
  std::vector<int32_t> expected = *train;
  EXPECT_EQ(text.train_tokens, static_cast<int64_t>(expected.size()));
  expected.insert(expected.end(), held_out->begin(), held_out->end());
  EXPECT_EQ(text.tokens, expected);
  EXPECT_LT(text.tokens.size(), file.bytes.size()) << "no token of several bytes";
  EXPECT_EQ(corpus->Bytes(text.tokens), static_cast<int64_t>(file.bytes.size()));
}

TEST(TextStreamTest, ReadsOnWithoutGapsAndNeverTouchesHeldOutTokens) {
  const auto corpus = ReadByteCorpus({WriteText("a.txt", 1000)}, 33);
  ASSERT_TRUE(corpus.ok());
  TextStream stream(&*corpus);
  std::mt19937_64 random(5);
  bool restarted = false;
  const int32_t* previous = nullptr;
  int continued = 0;
  for (int i = 0; i < 500; ++i) {
    const auto tokens = stream.Next(32, false, random, &restarted);
    ASSERT_EQ(tokens.size(), 33U);
    ASSERT_GE(tokens.data(), corpus->texts[0].tokens.data());
    ASSERT_LE(tokens.data() + 33, corpus->texts[0].tokens.data() + 900);
    EXPECT_EQ(restarted, i == 0 || previous + 32 != tokens.data());
    continued += restarted ? 0 : 1;
    previous = tokens.data();
  }
  EXPECT_GT(continued, 400);
}

// The texts have 900 and 450 training tokens.
TEST(TextStreamTest, BeginsAtAnyPlaceOfAnyText) {
  const auto corpus = ReadByteCorpus({WriteText("a.txt", 1000), WriteText("c.txt", 500)}, 33);
  ASSERT_TRUE(corpus.ok());
  TextStream stream(&*corpus);
  std::mt19937_64 random(5);
  bool restarted = false;
  int of_second = 0, early = 0;
  for (int i = 0; i < 900; ++i) {
    stream.Next(32, /*restart=*/true, random, &restarted);
    EXPECT_TRUE(stream.IsInCorpus());
    of_second += stream.text == 1 ? 1 : 0;
    early += stream.text == 1 && stream.offset - 32 < 225 ? 1 : 0;
  }
  EXPECT_NEAR(of_second, 300, 60);
  EXPECT_NEAR(early, 150, 45);
}

}  // namespace
}  // namespace aft
