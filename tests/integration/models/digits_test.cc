// The shipped classifier in a server, called as its card describes: by aftctl and tritonclient.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "tests/integration/oip/fixture.h"

namespace aft::server {
namespace {

const std::string kFolder = "model/zoo/digits-aft-conv/";
constexpr int64_t kPixels = 64;

ServerConfig Digits() {
  ServerConfig config = TestConfig();
  config.models[0].name = "digits-aft-conv";
  config.models[0].checkpoint_dir = kFolder;
  return config;
}

class DigitsServer : public OipServer {
 public:
  DigitsServer() : OipServer(Digits(), LoadModel) {
    const absl::Status ready = server().WaitReady();
    EXPECT_TRUE(ready.ok()) << ready;
  }

  std::vector<float> Logits(const std::vector<int64_t>& pixels) {
    const auto images = static_cast<int64_t>(pixels.size()) / kPixels;
    const auto answer = Infer(InferBuilder("digits-aft-conv")
                                  .Raw("input_ids", "INT64", {images, 8, 8}, RawOf(pixels))
                                  .request());
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return Numbers<float>(answer.response, "logits");
  }
};

// The pixels of the first held-out images.
std::vector<int64_t> HeldOut(int images) {
  std::ifstream file(kFolder + "held_out.csv");
  std::vector<int64_t> pixels;
  std::string line;
  for (int i = 0; i < images && std::getline(file, line); ++i) {
    std::vector<std::string> fields = absl::StrSplit(line, ',');
    fields.pop_back();
    for (const std::string& field : fields) {
      EXPECT_TRUE(absl::SimpleAtoi(field, &pixels.emplace_back()));
    }
  }
  return pixels;
}

TEST(DigitsServerTest, AnImagesLogitsDoNotDependOnItsBatch) {
  DigitsServer server;
  const std::vector<int64_t> pixels = HeldOut(20);
  ASSERT_EQ(pixels.size(), size_t{20 * kPixels});
  std::vector<float> alone;
  for (auto at = pixels.begin(); at != pixels.end(); at += kPixels) {
    const std::vector<float> logits = server.Logits({at, at + kPixels});
    alone.insert(alone.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(alone.size(), 200U);
  EXPECT_EQ(server.Logits(pixels), alone);
}

TEST(DigitsServerTest, AftctlReadsTheSample) {
  DigitsServer server;
  const client::Ended ended =
      client::RunToEnd({AFTCTL, "--address", server.server().address(), "infer", "--image",
                        kFolder + "sample.pgm", "--top", "1"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  const std::vector<std::string> words = absl::StrSplit(ended.out, absl::ByAnyChar("\t\n"));
  ASSERT_EQ(words.size(), 3U) << ended.out;
  EXPECT_EQ(words[0], "6");
  double probability = 0;
  ASSERT_TRUE(absl::SimpleAtod(words[1], &probability));
  EXPECT_GT(probability, 0.9);
  EXPECT_LE(probability, 1);
}

// Runs the card's example unchanged.
TEST(DigitsServerTest, TritonclientReadsThem) {
  DigitsServer server;
  RunTritonclient("digits.py", server.server());
}

}  // namespace
}  // namespace aft::server
