// Tests the figures of held-out text, and runs aft-train --evaluate as a process, with checkpoints
// and texts that do not fit together.

#include "model/train/evaluate.h"

#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/tokenizer/tokenizers.h"
#include "model/train/corpus.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "tests/support/mixer_of.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"
#include "tests/unit/train/tiny_network.h"

namespace aft {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

NetworkConfig NetworkWith(const std::string& mixer, int64_t max_seq_len = 0) {
  NetworkConfig config;
  config.vocab_size = 256;
  config.d_model = 4;
  config.n_layers = 1;
  config.d_ff = 4;
  config.max_seq_len = max_seq_len;
  config.mixer = MixerOf(mixer);
  return config;
}

// A text of bytes; those from `train_tokens` on are held out.
absl::StatusOr<Corpus> CorpusOf(const std::string& text, size_t train_tokens) {
  const TextFile file{.path = "text", .bytes = text, .train_bytes = train_tokens};
  return MakeCorpus({file}, *MakeByteTokenizer(), /*min_part_tokens=*/33);
}

TEST(HeldOutTest, TheCarriedFigureIsThatOfOneLongSegment) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += absl::StrCat("line ", i % 7, ": the quick brown fox\n");
  const auto corpus = CorpusOf(text, text.size() - 97);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const TrainNetwork network(TinyNetwork(), StartValues(TinyNetwork(), {.seed = 1, .spread = 0.5}));
  const HeldOut pieces = EvaluateHeldOut(network, *corpus, 32, 97, /*bf16=*/false);
  const HeldOut whole = EvaluateHeldOut(network, *corpus, 96, 97, /*bf16=*/false);
  EXPECT_NEAR(pieces.carried, whole.fresh, 1e-4);
  EXPECT_GT(std::abs(pieces.fresh - whole.fresh), 1e-3);
}

// The held-out part has two segments, and the token after the second one would be behind its end.
// The network gives each of its 256 tokens the same probability.
TEST(HeldOutTest, NothingBehindTheTextIsMeasured) {
  const auto corpus = CorpusOf(std::string(256, 'a'), 192);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  TrainNetwork network(TinyNetwork(), StartValues(TinyNetwork(), {.seed = 1}));
  {
    const at::NoGradGuard no_grad;
    network.parameters().at("head.weight").zero_();
  }
  const HeldOut held_out = EvaluateHeldOut(network, *corpus, 32, 64, /*bf16=*/false);
  EXPECT_NEAR(held_out.fresh, 8, 1e-3);
  EXPECT_NEAR(held_out.carried, 8, 1e-3);
}

class EvaluateTest : public testing::Test {
 protected:
  // A quarter of the text's bytes is held out.
  client::Ended Evaluate(const NetworkConfig& checkpoint, int64_t segment, int64_t text_bytes,
                         const std::string& windows = "1") const {
    return EvaluateText(checkpoint, segment, std::string(static_cast<size_t>(text_bytes), 'a'),
                        windows);
  }
  client::Ended EvaluateText(const NetworkConfig& checkpoint, int64_t segment,
                             const std::string& text, const std::string& windows = "1") const {
    std::ofstream(folder_.File("text.txt")) << text;
    return client::RunToEnd(Command(checkpoint, segment, windows));
  }
  // Writes the config and the checkpoint.
  std::vector<std::string> Command(const NetworkConfig& checkpoint, int64_t segment,
                                   const std::string& windows = "1") const {
    std::ofstream(folder_.File("train.json"))
        << R"({"texts": ["text.txt"], "held_out": 0.25, "threads": 1, "segment": )" << segment
        << R"(, "network": )" << FormatNetworkConfig(NetworkWith("aft_local window=4")) << "}";
    const TrainNetwork network(checkpoint, StartValues(checkpoint, {.seed = 1}));
    EXPECT_TRUE(WriteCheckpoint(folder_.path(), checkpoint, network.parameters()).ok());
    return {AFT_TRAIN,   "--config", folder_.File("train.json"), "--evaluate", folder_.path(),
            "--windows", windows};
  }

  const TempFolder folder_;
};

TEST_F(EvaluateTest, ASegmentMustFitTheCheckpoint) {
  const std::string dir = absl::StrCat("aft-train: ", folder_.path(), ": segment: ");
  const client::Ended block = Evaluate(NetworkWith("aft_local window=4 prefix_block=24"), 32, 8000);
  EXPECT_EQ(block.code, 1) << block.err;
  EXPECT_THAT(block.err, HasSubstr(dir + "must be a multiple of the network's mixer.prefix_block"));
  const client::Ended rows = Evaluate(NetworkWith("aft_full band_rows=16 bias=full", 16), 32, 8000);
  EXPECT_EQ(rows.code, 1) << rows.err;
  EXPECT_THAT(rows.err, HasSubstr(dir + "must not exceed the network's max_seq_len, 16, got 32"));
}

TEST_F(EvaluateTest, TheMaskTokenMustFitTheCheckpoint) {
  NetworkConfig network = NetworkWith("aft_local window=4 causal=false");
  network.architecture = Architecture::kEncoder;
  network.vocabulary_head = true;
  network.tokenizer = "chars";
  std::ofstream(folder_.File("train.json"))
      << R"({"texts": ["text.txt"], "segment": 32, "mask_token": 40, "network": )"
      << FormatNetworkConfig(network) << "}";
  network.vocab_size = 40;
  const TrainNetwork made(network, StartValues(network, {.seed = 1}));
  ASSERT_TRUE(WriteCheckpoint(folder_.path(), network, made.parameters()).ok());
  const client::Ended ended = client::RunToEnd(
      {AFT_TRAIN, "--config", folder_.File("train.json"), "--evaluate", folder_.path()});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr(folder_.path() + ": mask_token: must be below the network's "
                                                    "vocab_size, 40, got 40"));
}

TEST_F(EvaluateTest, TheHeadMustBeThatOfTheConfig) {
  const NetworkConfig language = NetworkWith("aft_local window=4");
  NetworkConfig plain = NetworkWith("aft_local window=4 causal=false");
  plain.architecture = Architecture::kEncoder;
  NetworkConfig fills = plain, labels = plain, others = plain, images = plain;
  fills.vocabulary_head = true;
  labels.labels = {"a", "b"};
  others.labels = {"a", "c"};
  images.labels = labels.labels;
  images.tokenizer.clear();
  images.mixer = MixerOf("aft_conv window=3 heads=2 grid=true causal=false");
  const struct {
    const NetworkConfig& have;
    const NetworkConfig& want;
    const char* data;
  } cases[] = {
      {fills, language, R"("segment": 32, "texts": ["text.txt"])"},
      {plain, fills, R"("segment": 32, "texts": ["text.txt"])"},
      {others, labels, R"("segment": 32, "examples": ["labels.jsonl"])"},
      {labels, images, R"("images": "images.csv", "image_width": 4)"},
  };
  for (const auto& [have, want, data] : cases) {
    const std::vector<std::string> command = Command(have, 32);
    std::ofstream(folder_.File("train.json"))
        << "{" << data << R"(, "network": )" << FormatNetworkConfig(want) << "}";
    const client::Ended ended = client::RunToEnd(command);
    EXPECT_EQ(ended.code, 1) << data;
    EXPECT_THAT(ended.err, HasSubstr(folder_.path() + ": has another architecture or another head"))
        << data;
  }
}

TEST_F(EvaluateTest, ABareMixerIsNoNetwork) {
  const std::vector<std::string> command = Command(NetworkWith("aft_local window=4"), 32);
  NetworkConfig mixer = NetworkWith("aft_local window=4");
  mixer.architecture = Architecture::kMixer;
  mixer.vocab_size = mixer.d_ff = 0;
  mixer.tokenizer.clear();
  ASSERT_TRUE(WriteCheckpoint(folder_.path(), mixer, StartValues(mixer, {})).ok());
  const client::Ended ended = client::RunToEnd(command);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr(folder_.path() + ": is a bare mixer, not a network"));
}

// A fresh network gives each of its 256 tokens the same probability: 8 bits for two bytes.
TEST_F(EvaluateTest, CountsTheBytesOfTheCheckpointsTokens) {
  NetworkConfig checkpoint = NetworkWith("aft_full band_rows=32 bias=full", 32);
  checkpoint.tokenizer = "chars";
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "\xC3\xA9";
  const client::Ended missing = EvaluateText(checkpoint, 32, text);
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("chars.json"));
  std::ofstream(folder_.File("chars.json")) << "[\"\xC3\xA9\"]";
  const client::Ended ended = EvaluateText(checkpoint, 32, text);
  EXPECT_EQ(ended.code, 0) << ended.err;
  double fresh = 0;
  ASSERT_EQ(std::sscanf(ended.out.c_str(), "held-out bits per byte: %lf from", &fresh), 1)
      << ended.out;
  EXPECT_THAT(ended.out, testing::EndsWith(" in consecutive segments\n")) << "there is no state";
  EXPECT_NEAR(fresh, 4, 0.05);
}

TEST_F(EvaluateTest, FiguresBeforeTheEndOfTheTextArePrintedBeforeTheError) {
  const client::Ended ended = Evaluate(NetworkWith("aft_local window=4"), 32, 8000);
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(ended.out, ContainsRegex("held-out bits per byte: .*, [0-9.]+ carried\n"));
  EXPECT_THAT(ended.out, ContainsRegex("at position   4096: [0-9.]+ \\([+-]0.0[0-9]* %\\)"));
  EXPECT_THAT(ended.err,
              HasSubstr(folder_.File("text.txt") + ": too short for figures at position 32768"));
}

TEST_F(EvaluateTest, FiguresByPositionNeedAWindowThatIsHeldOut) {
  const client::Ended ended = Evaluate(NetworkWith("aft_local window=4"), 32, 4000);
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(ended.out, Not(HasSubstr("nan")));
  EXPECT_THAT(ended.err, HasSubstr("need a text that holds out 1025 tokens"));
}

TEST_F(EvaluateTest, FiguresByPositionNeedBlocksThatDivideTheirSegments) {
  const client::Ended ended = Evaluate(NetworkWith("aft_local window=4 prefix_block=48"), 48, 8000);
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("held-out bits per byte: "));
  EXPECT_THAT(ended.err, HasSubstr("a mixer.prefix_block that divides 256, the checkpoint has 48"));
}

TEST_F(EvaluateTest, TheNumberOfWindowsMustBePositiveAndPossible) {
  for (const char* windows : {"0", "-1", "9223372036854775807"}) {
    const client::Ended ended = Evaluate(NetworkWith("aft_local window=4"), 32, 8000, windows);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("--windows: Value"));
  }
}

// The program waits for the end of its text until the signal has been sent.
TEST_F(EvaluateTest, ASignalEndsIt) {
  const std::vector<std::string> command = Command(NetworkWith("aft_local window=4"), 32);
  for (const int signal : {SIGINT, SIGTERM}) {
    const client::EndlessFile text(folder_.File("text.txt"));
    client::Process run(command);
    ASSERT_TRUE(text.WaitForReader(run)) << run.err();
    run.Signal(signal);
    EXPECT_EQ(run.Wait(), 130) << run.err();
  }
}

}  // namespace
}  // namespace aft
