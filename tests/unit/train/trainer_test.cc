// Tests whole training runs of a tiny network on a small text.

#include "model/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/equal.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/kinds.h"
#include "model/tokenizer/tokenizers.h"
#include "model/train/corpus.h"
#include "model/train/evaluate.h"
#include "model/train/run_tokenizer.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"
#include "tests/unit/train/tiny_network.h"
#include "tests/unit/train/trainer_fixture.h"

namespace aft {
namespace {

constexpr int64_t kTokens = 32;

// Returns an example of every kind, and the forms with tables that these examples lack.
std::map<std::string, MixerConfig> CausalMixers() {
  std::map<std::string, MixerConfig> mixers;
  for (const KindSpec& kind : AllKinds()) mixers[kind.name] = ExampleMixer(kind.kind, kTokens);
  for (const char* form : {"aft_simple prefix_block=32", "aft_local window=5 band_rows=32",
                           "aft_local window=5 band_rows=32 bias=factors bias_rank=4",
                           "aft_full band_rows=32 bias=factors bias_rank=4",
                           "aft_conv window=7 heads=2 reparameterized=true"}) {
    mixers[form] = MixerOf(form);
  }
  return mixers;
}

TEST_F(TrainerTest, LearnsAndWritesALoadableCheckpoint) {
  const std::vector<double> losses = Train("/run");
  EXPECT_EQ(losses.size(), 60U);
  EXPECT_NEAR(losses.front(), 8.0, 0.3) << "fresh weights know nothing: log2(256) bits";
  EXPECT_LT(losses.back(), 5.0);
  const auto checkpoint = ReadCheckpoint(dir_ + "/run");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(FormatNetworkConfig(checkpoint->config), FormatNetworkConfig(config_.network));
  int64_t weights = 0;
  for (const auto& [name, tensor] : checkpoint->tensors) weights += tensor.numel();
  EXPECT_EQ(weights, CountParameters(config_.network));
  const auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto curve = ReadCurve(dir_ + "/run/curve.csv", trainer->objective().names());
  ASSERT_TRUE(curve.ok());
  ASSERT_EQ(curve->size(), 3U);
  EXPECT_EQ(trainer->objective().Rank({1, 3}), 2);
  EXPECT_LT(curve->back().held_out[1], curve->front().held_out[1]);
  EXPECT_THAT(ReadBytes(dir_ + "/run/curve.csv"),
              testing::StartsWith("step,tokens,seconds,train_bpb,held_out_fresh_bpb,"
                                  "held_out_carried_bpb,learning_rate\n"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/run/curve.svg"));
}

TEST_F(TrainerTest, ARunHasTwentyEvaluationsUnlessItsConfigSaysMore) {
  config_.eval_every_steps = 0;
  Train("/run");
  const auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(ReadCurve(dir_ + "/run/curve.csv", trainer->objective().names())->size(), 20U);
}

TEST_F(TrainerTest, ALongRunIsEvaluatedAfter500Steps) {
  config_.network.n_layers = 1;
  config_.batch = 1;
  config_.segment = 16;
  config_.eval_tokens = 16;
  config_.eval_every_steps = 0;
  config_.total_tokens = 16 * 20'000;
  auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  std::atomic<bool> stop = false;
  int64_t evaluated = 0;
  ASSERT_TRUE(trainer
                  ->Run(
                      stop,
                      [&](const Trainer::Progress& p) {
                        EXPECT_NEAR(p.eta_seconds * p.amount_per_second,
                                    static_cast<double>(config_.total_tokens - p.amount), 1e-3);
                        stop = p.step > 500;
                      },
                      [&](const CurvePoint& point, bool) {
                        evaluated = point.step;
                        stop = true;
                      })
                  .ok());
  EXPECT_EQ(evaluated, 500);
}

TEST_F(TrainerTest, RemovesTheTemporaryFilesOfAKilledRun) {
  std::filesystem::create_directory(dir_ + "/run");
  for (const char* name : {"/run/resume.safetensors.tmp.1.0", "/run/model.safetensors.tmp.1.7"}) {
    WriteBytes(dir_ + name, "half a file");
  }
  ASSERT_TRUE(Trainer::Create(config_, dir_ + "/run").ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir_ + "/run"));
}

// A fresh network gives each of its tokens the same probability: log2(vocab_size) bits a token.
TEST_F(TrainerTest, LearnsTheTokensOfTheNetworksTokenizer) {
  for (const std::string kind : {"bpe", "chars"}) {
    SCOPED_TRACE(kind);
    config_.network.tokenizer = kind;
    config_.network.vocab_size = kind == "bpe" ? 290 : 40;
    const std::string out = "/" + kind;
    const std::vector<double> losses = Train(out);
    const auto tokenizer = LoadTokenizer(kind, dir_ + out, config_.network.vocab_size);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto files = ReadTextFiles(config_.texts, config_.held_out);
    ASSERT_TRUE(files.ok()) << files.status();
    const auto tokens = (*tokenizer)->Encode(files->front().train());
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    const double tokens_per_byte =
        static_cast<double>(tokens->size()) / static_cast<double>(files->front().train_bytes);
    EXPECT_LT(tokens_per_byte, kind == "bpe" ? 0.5 : 1.01);
    const double log2_vocabulary = std::log2(static_cast<double>(config_.network.vocab_size));
    EXPECT_NEAR(losses.front(), log2_vocabulary * tokens_per_byte, 0.3 * tokens_per_byte);
    EXPECT_LT(losses.back(), 0.7 * losses.front());

    std::vector<double> pieces = Train(out + "-pieces", 13);
    for (const double loss : Train(out + "-pieces")) pieces.push_back(loss);
    EXPECT_EQ(pieces, losses);
  }
}

TEST_F(TrainerTest, TakesTheShippedVocabularyOfWorld) {
  config_.network.tokenizer = "world";
  config_.network.vocab_size = 65536;
  const std::string left[] = {dir_ + "/tokenizer.json", dir_ + "/tokenizer_config.json"};
  for (const std::string& file : left) WriteBytes(file, "of another run");
  ASSERT_TRUE(RunTokenizer(config_, {"text"}, dir_, /*resumed=*/false).ok());
  for (const std::string& file : left) EXPECT_FALSE(std::filesystem::exists(file)) << file;
  EXPECT_EQ(ReadBytes(dir_ + "/" + kWorldFileName), ShippedWorldVocabulary());
  config_.network.vocab_size = 65529;
  EXPECT_THAT(RunTokenizer(config_, {"text"}, dir_, /*resumed=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("65530 tokens")));
}

TEST_F(TrainerTest, UsesTheGivenTokenizerAndRefusesAnotherOneLater) {
  config_.network.tokenizer = "chars";
  config_.network.vocab_size = 64;
  const TempFolder given;
  const auto give = [&](const std::string& characters) {
    std::ofstream(given.File(kCharsFileName)) << characters;
  };
  config_.tokenizer = given.path();
  give(R"(["a", "b"])");
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(testing::HasSubstr("text.txt"),
                                      testing::HasSubstr("'l' (U+006C) at byte 0"))));
  give(R"(["a", "<unk>", "e", " "])");
  Train("/run", 1);
  const auto tokenizer = LoadTokenizer("chars", dir_ + "/run", 64);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 4);
  EXPECT_TRUE(Trainer::Create(config_, dir_ + "/run").ok());
  give(R"(["a", "<unk>", "e", "x"])");
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::HasSubstr(given.path() + ": not the tokenizer")));
  std::filesystem::remove_all(given.path());
  EXPECT_TRUE(Trainer::Create(config_, dir_ + "/run").ok()) << "the run has a copy";
}

TEST_F(TrainerTest, AGivenTokenizerMayLieInTheFolderOfTheRun) {
  config_.network.tokenizer = "chars";
  config_.network.vocab_size = 64;
  config_.tokenizer = dir_ + "/run";
  std::filesystem::create_directory(config_.tokenizer);
  const std::string characters = R"(["<unk>", "e"])";
  std::ofstream(config_.tokenizer + "/chars.json") << characters;
  Train("/run", 1);
  EXPECT_EQ(ReadBytes(config_.tokenizer + "/chars.json"), characters);
}

TEST_F(TrainerTest, AnInterruptedRunContinuesBitForBit) {
  config_.dropout = 0.1;
  config_.embedding_dropout = 0.1;
  config_.feed_forward_dropout = 0.1;
  const std::vector<double> whole = Train("/whole");
  std::vector<double> pieces = Train("/pieces", 13);
  EXPECT_EQ(pieces.size(), 13U);
  for (const double loss : Train("/pieces")) pieces.push_back(loss);
  EXPECT_EQ(pieces, whole);
}

// A run that is killed may have written the row of an evaluation that it had not saved.
TEST_F(TrainerTest, AResumedRunReplacesTheRowsAfterItsStep) {
  Train("/run", 21);
  const std::string path = dir_ + "/run/curve.csv";
  WriteBytes(path, ReadBytes(path) + "40,5120,9.9,1,1,1,0.01\n");
  Train("/run");
  EXPECT_THAT(ReadBytes(path),
              testing::MatchesRegex("step,[^\n]*\n20,[^\n]*\n40,[^\n]*\n60,[^\n]*\n"));
}

TEST_F(TrainerTest, AnInterruptedRunOfARecurrenceContinuesBitForBit) {
  config_.total_tokens = 4 * 32 * 12;
  for (const MixerKind kind : {MixerKind::kWkv4, MixerKind::kWkv7}) {
    config_.network = TinyNetwork();
    UseMixer(ExampleMixer(kind, kTokens), &config_.network);
    const std::string out = std::string("/") + MixerKindName(kind);
    const std::vector<double> whole = Train(out + "-whole");
    std::vector<double> pieces = Train(out + "-pieces", 5);
    for (const double loss : Train(out + "-pieces")) pieces.push_back(loss);
    EXPECT_EQ(pieces, whole) << out;
  }
}

TEST_F(TrainerTest, TrainsEveryCausalMixer) {
  config_.total_tokens = 4 * 32 * 20;
  config_.eval_every_steps = 1000;
  for (const auto& [name, mixer] : CausalMixers()) {
    SCOPED_TRACE(name);
    config_.network = TinyNetwork();
    UseMixer(mixer, &config_.network);
    config_.network.max_seq_len = StateGrows(mixer) ? kTokens : mixer.band_rows;
    const std::vector<double> losses = Train("/" + name);
    EXPECT_LT(losses.back(), losses.front() - 1);
    const auto checkpoint = ReadCheckpoint(dir_ + "/" + name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const TrainNetwork fresh(config_.network, StartValues(config_.network, {.seed = config_.seed}));
    for (const auto& [tensor, trained] : checkpoint->tensors) {
      EXPECT_FALSE(at::equal(trained, fresh.parameters().at(tensor))) << tensor << " stayed";
    }
  }
}

TEST_F(TrainerTest, TrainsPositionsActivationsAndMissingBiases) {
  config_.total_tokens = 4 * 32 * 20;
  config_.network.mixer = MixerOf("dot_product heads=2 hidden=24");
  config_.network.max_seq_len = 40;
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    const bool learned = activation == Activation::kRelu;
    config_.network.activation = activation;
    config_.network.position = learned ? PositionKind::kLearned : PositionKind::kSinusoidal;
    config_.network.position_rows = learned ? 40 : 0;
    config_.network.embedding_scale = learned ? 1.0F : 4.0F;
    config_.network.qkv_bias = config_.network.head_bias = !learned;
    config_.network.tie_embeddings = learned;
    const std::vector<double> losses = Train(learned ? "/learned" : "/sinusoidal");
    EXPECT_LT(losses.back(), losses.front() - 1);
  }
}

TEST_F(TrainerTest, RefusesTheStateOfAnotherNetwork) {
  Train("/run", 1);
  config_.network.d_ff = 48;
  EXPECT_THAT(
      Trainer::Create(config_, dir_ + "/run"),
      StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("resume.safetensors")));
}

TEST_F(TrainerTest, RefusesTheStateOfOtherTexts) {
  Train("/run", 1);
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               testing::HasSubstr("resume.safetensors: belongs to a run with other train"));
  const double held_out = std::exchange(config_.held_out, 0.04);
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run"), refused) << "more of the text is trained on";
  config_.held_out = held_out;
  std::ofstream(config_.texts[0], std::ios::app) << "line 8\n";
  EXPECT_THAT(Trainer::Create(config_, dir_ + "/run"), refused);
}

TEST_F(TrainerTest, RefusesAResumeFileThatWasAltered) {
  Train("/run", 1);
  const std::string path = dir_ + "/run/resume.safetensors";
  const auto file = ReadSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto create_with = [&](const std::string& key, const std::string& value) {
    auto metadata = file->metadata;
    metadata[key] = value;
    EXPECT_TRUE(WriteSafetensors(path, file->tensors, metadata).ok());
    return Trainer::Create(config_, dir_ + "/run").status();
  };
  for (const char* key : {"objective", "batch", "data", "segment", "eval_tokens", "eval_examples",
                          "mask_probability", "mask_token", "least_tokens", "temperature"}) {
    EXPECT_EQ(file->metadata.count(key), 1U) << key;
    EXPECT_THAT(create_with(key, "1"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::ContainsRegex(
                             std::string("resume.safetensors: belongs to a run with .*") + key)));
  }
  EXPECT_TRUE(create_with("data", "").ok()) << "as in files of earlier versions";
  EXPECT_TRUE(create_with("segment", "").ok()) << "as in files of earlier versions";
  for (const char* streams :
       {"1 0 0 0 0 0 0 0", "-2 0 0 0 0 0 0 0", "0 -1 0 0 0 0 0 0", "0 0 0 0 0 0 0 1000000",
        "0 9223372036854775807 0 0 0 0 0 0", "9223372036854775807 0 0 0 0 0 0 0"}) {
    EXPECT_THAT(create_with("streams", streams),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::HasSubstr("resume.safetensors: stands at a place")))
        << streams;
  }
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"streams", "0 0"}, {"steps", "-1"}, {"seconds", "inf"}, {"best", "nan"}}) {
    EXPECT_THAT(create_with(key, value),
                StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("resume.safetensors")))
        << key;
  }
  EXPECT_TRUE(create_with("streams", "-1 0 0 0 -1 0 0 5").ok());
}

// All vectors are the same number in every channel, so the norm before the head makes them 0 and
// the loss is 8 bits. Its gradient is beyond all floats.
TEST_F(TrainerTest, StopsOnAGradientThatIsNotFinite) {
  TensorMap weights = StartValues(config_.network, {});
  for (auto& [name, tensor] : weights) {
    if (absl::StrContains(name, ".out.") || absl::StrContains(name, ".down.")) tensor.zero_();
  }
  weights.at("embed.weight").fill_(1);
  weights.at("norm.weight").fill_(1e20);
  weights.at("head.weight").mul_(1e25);
  config_.initial = dir_ + "/given";
  std::filesystem::create_directory(config_.initial);
  ASSERT_TRUE(WriteCheckpoint(config_.initial, config_.network, weights).ok());
  auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  std::atomic<bool> stop = false;
  EXPECT_THAT(
      trainer->Run(
          stop, [&](const Trainer::Progress&) { stop = true; }, [](const CurvePoint&, bool) {}),
      StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("not finite at step 0")));
}

TEST_F(TrainerTest, StopsOnALossThatIsNotFinite) {
  EXPECT_THAT(
      Ruin("/run"),
      StatusIs(absl::StatusCode::kInternal,
               testing::ContainsRegex("not finite at step [0-9]+; nothing was saved yet; ")));
}

// The loss of a step is measured before the step changes the weights.
TEST_F(TrainerTest, SavesNoWeightsThatItsLastStepHasRuined) {
  Train("/run", 25);
  std::map<std::string, std::string> before;
  for (const char* name : {"/resume.safetensors", "/model.safetensors", "/curve.csv"}) {
    before[name] = ReadBytes(dir_ + "/run" + name);
  }
  const TrainConfig good = config_;
  for (const bool stop_at_once : {false, true}) {
    config_.eval_every_steps = stop_at_once ? 1000 : 1;
    EXPECT_THAT(Ruin("/run", stop_at_once),
                StatusIs(absl::StatusCode::kInternal,
                         testing::HasSubstr("not finite at step 26; the last good")));
    for (const auto& [name, bytes] : before) {
      EXPECT_TRUE(ReadBytes(dir_ + "/run" + name) == bytes) << name << stop_at_once;
    }
  }
  config_ = good;
  EXPECT_EQ(Train("/run").size(), 35U);
}

TEST_F(TrainerTest, AResumeFileHasTheSecondsOfItsEvaluation) {
  auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const std::atomic<bool> stop = false;
  double first = 0;
  const auto on_eval = [&](const CurvePoint& point, bool) {
    if (point.step == 20) first = point.seconds;
    if (point.step != 40) return;
    // A run that is killed now resumes with the file of step 20.
    const auto file = ReadSafetensors(dir_ + "/run/resume.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    double seconds = 0;
    ASSERT_TRUE(absl::SimpleAtod(file->metadata.at("seconds"), &seconds));
    EXPECT_GT(seconds, 0.99 * first);  // six digits are stored
  };
  ASSERT_TRUE(trainer
                  ->Run(
                      stop, [](const Trainer::Progress&) {}, on_eval)
                  .ok());
  EXPECT_GT(first, 0);
}

TEST_F(TrainerTest, AResumedRunAddsItsSecondsToThoseBeforeIt) {
  Train("/run", 20);
  const std::string path = dir_ + "/run/resume.safetensors";
  auto file = ReadSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status();
  file->metadata["seconds"] = "100000";
  ASSERT_TRUE(WriteSafetensors(path, file->tensors, file->metadata).ok());
  Train("/run");
  const auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto curve = ReadCurve(dir_ + "/run/curve.csv", trainer->objective().names());
  ASSERT_TRUE(curve.ok()) << curve.status();
  ASSERT_EQ(curve->size(), 3U);
  EXPECT_GE((*curve)[1].seconds, 100'000);
  EXPECT_GE((*curve)[2].seconds, 100'000);
  const auto resumed = ReadSafetensors(path);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  double seconds = 0;
  ASSERT_TRUE(absl::SimpleAtod(resumed->metadata.at("seconds"), &seconds));
  EXPECT_GE(seconds, 100'000);
}

TEST_F(TrainerTest, RemembersTheFigureOfItsBestWeights) {
  auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const std::atomic<bool> stop = false;
  double least = 1e9;
  const auto on_progress = [](const Trainer::Progress&) {};
  const auto on_eval = [&](const CurvePoint& point, bool kept) {
    const double rank = trainer->objective().Rank(point.held_out).value();
    EXPECT_EQ(kept, rank < least);
    least = std::min(least, rank);
  };
  ASSERT_TRUE(trainer->Run(stop, on_progress, on_eval).ok());
  const auto file = ReadSafetensors(dir_ + "/run/resume.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  double best = 0;
  ASSERT_TRUE(absl::SimpleAtod(file->metadata.at("best"), &best));
  EXPECT_EQ(best, least);
}

TEST_F(TrainerTest, KeepsOnlyBetterWeights) {
  Train("/run", 21);
  const std::string path = dir_ + "/run/resume.safetensors";
  auto file = ReadSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status();
  file->metadata["best"] = "-1";
  ASSERT_TRUE(WriteSafetensors(path, file->tensors, file->metadata).ok());
  const std::string weights = ReadBytes(dir_ + "/run/model.safetensors");
  auto trainer = Trainer::Create(config_, dir_ + "/run");
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const std::atomic<bool> stop = false;
  ASSERT_TRUE(trainer
                  ->Run(
                      stop, [](const Trainer::Progress&) {},
                      [](const CurvePoint&, bool kept) { EXPECT_FALSE(kept); })
                  .ok());
  EXPECT_TRUE(ReadBytes(dir_ + "/run/model.safetensors") == weights);
}

// Such characters stand for no bytes, so there is nothing to divide the bits by.
TEST_F(TrainerTest, TheHeldOutTextMayHaveOnlyUnknownCharacters) {
  config_.network.tokenizer = "chars";
  config_.tokenizer = dir_;
  std::ofstream(dir_ + "/chars.json") << R"(["<unk>", "e"])";
  std::ofstream(dir_ + "/text.txt") << std::string(8000, 'e') + std::string(1000, 'x');
  Train("/run", 25);
  EXPECT_TRUE(ReadCheckpoint(dir_ + "/run").ok());
  EXPECT_EQ(Train("/run").size(), 35U);
}

}  // namespace
}  // namespace aft
