#include "model/train/corpus.h"

#include <fstream>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

TEST(CorpusTest, HoldsOutTheTailOfEveryText) {
  const auto corpus = ReadCorpus({WriteText("a.txt", 1000), WriteText("b.txt", 200)}, 0.1, 10);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->texts[0].train_bytes, 900);
  EXPECT_EQ(corpus->texts[1].train_bytes, 180);
  EXPECT_EQ(corpus->train_bytes(), 1080);
  EXPECT_EQ(corpus->held_out_bytes(), 120);
}

TEST(CorpusTest, NamesAMissingFileAndATooShortOne) {
  EXPECT_THAT(ReadCorpus({"no/such/file.txt"}, 0.1, 10),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("no/such/file.txt")));
  EXPECT_THAT(ReadCorpus({WriteText("tiny.txt", 50)}, 0.1, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("tiny.txt")));
}

TEST(TextStreamTest, ReadsOnWithoutGapsAndNeverTouchesHeldOutBytes) {
  const auto corpus = ReadCorpus({WriteText("a.txt", 1000)}, 0.1, 33);
  ASSERT_TRUE(corpus.ok());
  TextStream stream(&*corpus);
  std::mt19937_64 random(5);
  bool restarted = false;
  const uint8_t* previous = nullptr;
  int continued = 0;
  for (int i = 0; i < 500; ++i) {
    const auto bytes = stream.Next(32, false, random, &restarted);
    ASSERT_EQ(bytes.size(), 33U);
    ASSERT_GE(bytes.data(), corpus->texts[0].bytes.data());
    ASSERT_LE(bytes.data() + 33, corpus->texts[0].bytes.data() + 900);
    EXPECT_EQ(restarted, i == 0 || previous + 32 != bytes.data());
    continued += restarted ? 0 : 1;
    previous = bytes.data();
  }
  EXPECT_GT(continued, 400);
}

}  // namespace
}  // namespace aft
