// Trains tiny encoders on masked tokens, labels and pairs of texts. Each has to do better than a
// baseline such as guessing.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/kinds.h"
#include "model/tokenizer/tokenizers.h"
#include "model/train/examples.h"
#include "model/train/objective.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"
#include "model/train/trainer.h"
#include "tests/property/random_inputs.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"
#include "tests/unit/train/tokens_of.h"

namespace aft {
namespace {

using testing::HasSubstr;
using Extent = Objective::Extent;

constexpr int64_t kLongest = 32;

class TextObjectivesTest : public testing::Test {
 protected:
  TextObjectivesTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  // The config of a run, with `network` in its network and `keys` outside of the network.
  std::string Json(const std::string& mixer, const std::string& network,
                   const std::string& keys) const {
    return absl::StrCat(R"({"network": {"format_version": 1, "architecture": "encoder",
      "vocab_size": 256, "d_model": 24, "n_layers": 2, "d_ff": 48, "activation": "gelu_tanh",
      "norm": "layer_norm", "norm_eps": 1e-5, "tokenizer": {"kind": "bytes"}, "max_seq_len": 32,
      "mixer": )",
                        mixer, network, R"(}, "segment": 32, "learning_rate": 0.01,
      "warmup_steps": 5, "weight_spread": 0.2, "bf16": false, "threads": 1, "held_out": 0.2,
      "eval_every_steps": 20, )",
                        keys, "}");
  }
  std::string MaskedJson(
      const std::string& mixer = R"({"kind": "aft_local", "window": 4, "causal": false})") {
    std::ofstream text(folder_.File("text.txt"));
    for (int i = 0; i < 400; ++i) text << "line " << i % 7 << ": the quick brown fox\n";
    return Json(mixer, R"(, "vocabulary_head": true, "tie_embeddings": false)",
                R"("texts": ["text.txt"], "total_tokens": 30720, "batch": 4, "eval_tokens": 512,
                   "dropout": 0.05)");
  }
  // Each text has two letters, and the first one decides its class. Both classes have the same
  // letters in a different order.
  std::string LabelsJson() {
    TestRandom random;
    std::ofstream file(folder_.File("labels.jsonl"));
    for (int i = 0; i < 300; ++i) {
      const bool up = random.Below(2) == 0;
      const std::string filler(static_cast<size_t>(random.Below(12)), '.');
      file << R"({"label": ")" << (up ? "up" : "down") << R"(", "text": ")" << filler
           << (up ? "ab" : "ba") << filler << "\"}\n";
    }
    return Json(R"({"kind": "aft_conv", "window": 3, "heads": 4, "causal": false})",
                R"(, "labels": ["up", "down"])",
                R"("examples": ["labels.jsonl"], "epochs": 8, "batch": 8, "dropout": 0.05)");
  }
  // The two lines of each pair have the same number.
  std::string PairsJson() {
    TestRandom random;
    std::ofstream file(folder_.File("pairs.jsonl"));
    for (int i = 0; i < 400; ++i) {
      const int64_t number = 1000 + random.Below(9000);
      file << R"({"a": "no. )" << number << R"(", "b": "the number )" << number << " again\"}\n";
    }
    return Json(R"({"kind": "block_local", "block_size": 8, "heads": 2, "causal": false})", "",
                R"("objective": "pairs", "examples": ["pairs.jsonl"], "epochs": 6, "batch": 16,
                   "attention_dropout": 0.05)");
  }

  TrainConfig Config(const std::string& json) {
    std::ofstream(folder_.File("train.json")) << json;
    const auto config = ReadTrainConfig(folder_.File("train.json"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : TrainConfig();
  }

  // Trains a whole run in `out`, and returns its evaluations.
  std::vector<CurvePoint> Train(const TrainConfig& config, const std::string& out) {
    std::vector<CurvePoint> points;
    auto trainer = Trainer::Create(config, folder_.File(out));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return points;
    const std::atomic<bool> stop = false;
    const absl::Status status = trainer->Run(
        stop, [](const Trainer::Progress&) {},
        [&](const CurvePoint& point, bool) { points.push_back(point); });
    EXPECT_TRUE(status.ok()) << status;
    return points;
  }

  static absl::StatusOr<std::unique_ptr<Objective>> Make(const TrainConfig& config) {
    return MakeObjective(config, [](const std::vector<absl::string_view>& /*training_texts*/) {
      return LoadTokenizer("bytes", "", 256);
    });
  }

  // The held-out figures of a network of bytes.
  static std::vector<double> Measure(const TrainConfig& config, const TrainNetwork& network,
                                     Extent extent = Extent::kEvaluation) {
    const auto objective = Make(config);
    EXPECT_TRUE(objective.ok()) << objective.status();
    return objective.ok() ? (*objective)->Measure(network, extent) : std::vector<double>(2);
  }

  // Returns the loss of a fresh network on `examples` of the held-out examples, or with kAll on
  // all.
  static double Loss(TrainConfig config, int64_t examples, Extent extent = Extent::kEvaluation) {
    config.eval_examples = examples;
    const TrainNetwork network(config.network,
                               StartValues(config.network, {.seed = 1, .spread = 0.3}));
    return Measure(config, network, extent)[0];
  }

  // Expects that a run that is killed after its first evaluation and started again ends like a run
  // that is not killed.
  void ExpectSurvivesAKill(const std::string& json) {
    std::ofstream(folder_.File("train.json")) << json;
    const auto argv = [this](const std::string& out) {
      return std::vector<std::string>{AFT_TRAIN, "--config", folder_.File("train.json"), "--out",
                                      folder_.File(out)};
    };
    const client::Ended whole = client::RunToEnd(argv("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_THAT(whole.err, testing::ContainsRegex("\nstep 5/[0-9]+ .* ETA [0-9]+ s\n"));
    EXPECT_THAT(whole.err, HasSubstr("\neval step 20: train (mean since the last evaluation) "));
    const std::string serve =
        absl::StrCat("aft-train: serve it: aft-server --model ", folder_.File("whole"), "\n");
    EXPECT_THAT(whole.err, testing::EndsWith(serve));
    const client::Ended again = client::RunToEnd(argv("whole"));
    EXPECT_EQ(again.code, 0);
    EXPECT_THAT(again.err, testing::MatchesRegex(absl::StrCat(
                               "aft-train: nothing to do: all [0-9]+ steps are done\n", serve)));
    {
      client::Process killed(argv("killed"));
      ASSERT_TRUE(killed.WaitForError("eval step 20:")) << killed.err();
      // The files that it saves after the evaluation may or may not exist yet.
      killed.Signal(SIGKILL);
      killed.Wait();
    }
    const client::Ended resumed = client::RunToEnd(argv("killed"));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    for (const char* name : {"/model.safetensors", "/config.json"}) {
      EXPECT_EQ(ReadBytes(folder_.File("killed") + name), ReadBytes(folder_.File("whole") + name))
          << name;
    }
    EXPECT_THAT(ReadBytes(folder_.File("killed/curve.svg")), HasSubstr("held out, "));
    const client::Ended measured = client::RunToEnd(
        {AFT_TRAIN, "--config", folder_.File("train.json"), "--evaluate", folder_.File("whole")});
    EXPECT_EQ(measured.code, 0) << measured.err;
    EXPECT_THAT(measured.out, testing::MatchesRegex("held out: [a-z ]+ [0-9.]+, [a-z ]+ [0-9.]+ "
                                                    "\\([0-9]+ training .*held out\\)\n"));
  }

  const TempFolder folder_;
};

// The baseline of the accuracy is to name the most frequent byte; the baseline of the loss is to
// know the frequency of each byte.
TEST_F(TextObjectivesTest, MaskedTokensAreFoundFromBothSides) {
  const TrainConfig config = Config(MaskedJson());
  const std::vector<CurvePoint> points = Train(config, "run");
  ASSERT_EQ(points.size(), 12U);
  std::map<char, double> counts;
  const std::string text = ReadBytes(config.texts[0]);
  for (const char byte : text) ++counts[byte];
  double entropy = 0, most = 0;
  for (const auto& [byte, count] : counts) {
    const double share = count / static_cast<double>(text.size());
    entropy -= share * std::log2(share);
    most = std::max(most, share);
  }
  EXPECT_LT(points.back().held_out[0], 0.7 * entropy);
  EXPECT_GT(points.back().held_out[1], 2 * most);
  EXPECT_LT(points.back().held_out[0], points.front().held_out[0]);
}

// The text has one letter, and nearly every token is one that the network has to find.
TEST_F(TextObjectivesTest, MostMaskedTokensAreReplacedAndSomeStay) {
  TrainConfig config = Config(MaskedJson());
  std::ofstream(folder_.File("text.txt")) << std::string(1280, 'a');
  config.batch = 64;
  config.mask_probability = 0.999;
  const auto objective = Make(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  double all = 0, masked = 0, same = 0;
  for (int64_t step = 0; step < 5; ++step) {
    const at::Tensor tokens = TokensOf(**objective, config.network, step);
    all += static_cast<double>(tokens.numel());
    masked += tokens.eq(config.mask_token).sum().item<double>();
    same += tokens.eq('a').sum().item<double>();
  }
  EXPECT_EQ(all, 5 * 64 * 32);
  EXPECT_NEAR(masked / all, 0.8, 0.02);
  EXPECT_NEAR(same / all, 0.1, 0.02) << "the others are random";
}

TEST_F(TextObjectivesTest, LearnsLabelsOfTextsThatDifferOnlyInTheirOrder) {
  const std::vector<CurvePoint> points = Train(Config(LabelsJson()), "run");
  ASSERT_FALSE(points.empty());
  EXPECT_GE(points.back().held_out[1], 0.95) << "half of them are found by guessing";
  EXPECT_EQ(ReadBytes(folder_.File("run/curve.csv")).substr(0, 54),
            "step,texts,seconds,train_loss,held_out_loss,held_out_a");
}

TEST_F(TextObjectivesTest, LearnsLabelsFromStretchesOfTexts) {
  std::string json = LabelsJson();
  json = absl::StrReplaceAll(json, {{R"("epochs": 8)", R"("epochs": 4, "least_tokens": 2)"}});
  std::ofstream file(folder_.File("labels.jsonl"));
  for (int i = 0; i < 200; ++i) {
    file << R"({"label": ")" << (i % 2 == 0 ? "up" : "down") << R"(", "text": ")"
         << std::string(100, i % 2 == 0 ? 'u' : 'd') << "\"}\n";
  }
  file.close();
  const TrainConfig config = Config(json);
  EXPECT_EQ(Train(config, "run").back().held_out[1], 1);
}

TEST_F(TextObjectivesTest, LearnsToFindTheOtherTextOfAPair) {
  const std::vector<CurvePoint> points = Train(Config(PairsJson()), "run");
  ASSERT_FALSE(points.empty());
  EXPECT_GE(points.back().held_out[1], 0.6) << "one of 16 is found by guessing";
  EXPECT_LT(points.back().held_out[0], 0.5 * std::log(16.0));
}

TEST_F(TextObjectivesTest, EveryObjectiveSurvivesAKill) {
  for (const std::string& json : {MaskedJson(), LabelsJson(), PairsJson()}) {
    ExpectSurvivesAKill(
        absl::StrReplaceAll(json, {{R"("total_tokens": 30720)", R"("total_tokens": 7680)"},
                                   {R"("epochs": 8)", R"("epochs": 2)"},
                                   {R"("epochs": 6)", R"("epochs": 3)"}}));
    std::filesystem::remove_all(folder_.File("whole"));
    std::filesystem::remove_all(folder_.File("killed"));
  }
}

// The run has that many steps that it cannot end before the signal arrives.
TEST_F(TextObjectivesTest, ASignalStopsARunThatTheSameCommandResumes) {
  std::ofstream(folder_.File("train.json")) << absl::StrReplaceAll(
      MaskedJson(), {{R"("total_tokens": 30720)", R"("total_tokens": 768000)"}});
  for (const auto& [signal, begun] : {std::pair(SIGTERM, "steps, from step 0\n"),
                                      std::pair(SIGINT, "steps, resuming at step ")}) {
    client::Process run(
        {AFT_TRAIN, "--config", folder_.File("train.json"), "--out", folder_.File("stopped")});
    ASSERT_TRUE(run.WaitForError("\nstep ")) << run.err();
    run.Signal(signal);
    EXPECT_EQ(run.Wait(), 130);
    EXPECT_THAT(run.err(), HasSubstr(begun));
    EXPECT_THAT(run.err(), testing::ContainsRegex("\naft-train: stopped at step [0-9]+, saved; "));
  }
}

TEST_F(TextObjectivesTest, EveryKindLearnsBidirectionally) {
  for (const KindSpec& kind : AllKinds()) {
    if (kind.token_shift) continue;
    SCOPED_TRACE(kind.name);
    TrainConfig config = Config(MaskedJson());
    config.network.mixer = ExampleMixer(kind.kind, kLongest);
    config.network.mixer.causal = false;
    config.network.mixer.prefix_block = 0;
    if (kind.kind == MixerKind::kAftConv) config.network.mixer.window = 5;
    config.network.max_seq_len = kLongest;
    config.total_tokens = int64_t{4} * 32 * 30;
    const std::vector<CurvePoint> points = Train(config, kind.name);
    ASSERT_EQ(points.size(), 2U);
    EXPECT_LT(points.back().held_out[0], 5.0) << "8 bits are known without learning";
    const auto checkpoint = ReadCheckpoint(folder_.File(kind.name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  }
}

TEST_F(TextObjectivesTest, LearnsTheTokenizerOfTheTrainingTexts) {
  std::string json = LabelsJson();
  json = absl::StrReplaceAll(json, {{R"({"kind": "bytes"})", R"({"kind": "chars"})"},
                                    {R"("vocab_size": 256)", R"("vocab_size": 9)"}});
  EXPECT_GE(Train(Config(json), "run").back().held_out[1], 0.95);
  EXPECT_THAT(ReadBytes(folder_.File("run/chars.json")), HasSubstr("\"a\""));
}

TEST_F(TextObjectivesTest, ExamplesAreHeldOutEvenly) {
  std::ofstream file(folder_.File("labels.jsonl"));
  for (int i = 0; i < 10; ++i) file << R"({"label": "up", "text": ")" << i << "\"}\n";
  file.close();
  const TrainConfig config =
      Config(Json(R"({"kind": "aft_simple", "causal": false})", R"(, "labels": ["up", "down"])",
                  R"("examples": ["labels.jsonl"])"));
  const auto split = ReadExamples(config, [](const std::vector<absl::string_view>& training_texts) {
    EXPECT_THAT(training_texts, testing::ElementsAre("0", "1", "2", "3", "5", "6", "7", "8"));
    return LoadTokenizer("bytes", "", 256);
  });
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->held_out.texts, (std::vector<std::vector<int32_t>>{{'4'}, {'9'}}));
  EXPECT_EQ(split->train.texts.size(), 8U);
  EXPECT_EQ(split->train.classes, std::vector<int64_t>(8, 0));
}

// The labels of the 200 that are held out are up, down, up, down and so on. An evaluation of 2 or
// of 100 takes only those with "up". More than 64 are measured in several parts.
TEST_F(TextObjectivesTest, AnEvaluationTakesItsExamplesFromAllThatAreHeldOut) {
  std::ofstream file(folder_.File("labels.jsonl"));
  for (int i = 0; i < 1000; ++i) {
    file << R"({"text": "a", "label": ")" << (i % 10 == 4 ? "up" : "down") << "\"}\n";
  }
  file.close();
  const TrainConfig config =
      Config(Json(R"({"kind": "aft_simple", "causal": false})", R"(, "labels": ["up", "down"])",
                  R"("examples": ["labels.jsonl"])"));
  EXPECT_NEAR(Loss(config, 2), Loss(config, 1), 1e-6);
  EXPECT_NEAR(Loss(config, 100), Loss(config, 1), 1e-5);
  EXPECT_GT(std::abs(Loss(config, 2) - Loss(config, 2, Extent::kAll)), 1e-5);
  const TrainNetwork network(config.network,
                             StartValues(config.network, {.seed = 1, .spread = 0.3}));
  EXPECT_EQ(Measure(config, network, Extent::kAll)[1], 0.5) << "the same class for each text";
}

// Held out are four batches of two pairs. The third one is equal to the first, and the fourth to
// the second.
TEST_F(TextObjectivesTest, AnEvaluationTakesItsPairsFromAllThatAreHeldOut) {
  std::ofstream file(folder_.File("pairs.jsonl"));
  for (int i = 0; i < 40; ++i) {
    const int kind = i / 5 % 4;
    file << R"({"a": ")"
         << "abcd"[kind] << R"(", "b": ")"
         << "pqrs"[kind] << "\"}\n";
  }
  file.close();
  const TrainConfig config =
      Config(Json(R"({"kind": "aft_simple", "causal": false})", "",
                  R"("objective": "pairs", "examples": ["pairs.jsonl"], "batch": 2)"));
  EXPECT_NEAR(Loss(config, 4), Loss(config, 2), 1e-6);
  EXPECT_GT(std::abs(Loss(config, 4) - Loss(config, 4, Extent::kAll)), 1e-5);
}

// The network answers 'a' to everything. The first half of the held-out segments has no other byte,
// and the second half does not have it.
TEST_F(TextObjectivesTest, AnEvaluationTakesItsSegmentsFromAllThatAreHeldOut) {
  std::ofstream(folder_.File("text.txt")) << std::string(1152, 'a') << std::string(128, 'b');
  const TrainConfig config =
      Config(Json(R"({"kind": "aft_simple", "causal": false})",
                  R"(, "vocabulary_head": true, "tie_embeddings": false)",
                  R"("texts": ["text.txt"], "eval_tokens": 128, "mask_probability": 1e-9)"));
  TrainNetwork network(config.network, StartValues(config.network, {.seed = 1, .spread = 1e-6}));
  {
    const at::NoGradGuard no_grad;
    network.parameters().at("head.bias").select(0, 'a').fill_(1);
  }
  EXPECT_EQ(Measure(config, network)[1], 0.5);
}

// A whole evaluation computes at least 3 losses here, and would delay the save.
TEST_F(TextObjectivesTest, AStopMeasuresOneBatchBeforeItSaves) {
  static int losses;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        if (call.name() == std::string("aten::cross_entropy_loss")) ++losses;
        return nullptr;
      }));
  TrainConfig next_tokens = Config(MaskedJson());
  next_tokens.objective = ObjectiveKind::kNextTokens;
  next_tokens.network.architecture = Architecture::kDecoderLm;
  next_tokens.network.vocabulary_head = false;
  next_tokens.network.mixer.causal = true;
  next_tokens.texts = std::vector<std::string>(20, next_tokens.texts[0]);
  TrainConfig labels = Config(LabelsJson());
  labels.held_out = 0.45;
  for (const TrainConfig& config :
       {next_tokens, Config(MaskedJson()), labels, Config(PairsJson())}) {
    const std::string out = folder_.File(absl::StrCat("run", static_cast<int>(config.objective)));
    auto trainer = Trainer::Create(config, out);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) continue;
    std::atomic<bool> stop = false;
    const auto stop_now = [&](const Trainer::Progress&) {
      stop = true;
      losses = 0;
    };
    EXPECT_TRUE(trainer->Run(stop, stop_now, {}).ok());
    EXPECT_TRUE(losses == 1 || losses == 2) << losses << " in " << out;
  }
  at::removeCallback(handle);
}

TEST_F(TextObjectivesTest, ARunIsNotResumedWithOtherData) {
  const std::pair<std::string, std::string> objectives[] = {
      {MaskedJson(), "text.txt"}, {LabelsJson(), "labels.jsonl"}, {PairsJson(), "pairs.jsonl"}};
  for (const auto& [json, data] : objectives) {
    const TrainConfig config = Config(json);
    const std::string out = folder_.File(data + "-run");
    const std::atomic<bool> stop = true;
    {
      auto trainer = Trainer::Create(config, out);
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      ASSERT_TRUE(trainer->Run(stop, {}, {}).ok());
    }
    EXPECT_TRUE(Trainer::Create(config, out).ok());
    const std::string lines = ReadBytes(folder_.File(data));
    const std::string changed = absl::StrReplaceAll(
        lines,
        {{R"("up")", R"("down")"}, {R"("down")", R"("up")"}, {"quick", "quack"}, {"no.", "No."}});
    for (const std::string& other : {lines + lines.substr(0, lines.find('\n') + 1), changed}) {
      WriteBytes(folder_.File(data), other);
      EXPECT_THAT(Trainer::Create(config, out),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("resume.safetensors: belongs to a run with other training")));
    }
  }
}

TEST_F(TextObjectivesTest, OnlyOneTrainerWorksInAFolder) {
  const TrainConfig config = Config(LabelsJson());
  const std::string out = folder_.File("shared");
  {
    const auto trainer = Trainer::Create(config, out);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_THAT(Trainer::Create(config, out),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(out + ": another aft-train works in this folder")));
  }
  EXPECT_TRUE(Trainer::Create(config, out).ok());
}

TEST_F(TextObjectivesTest, FaultsOfExamplesNameTheLine) {
  const TrainConfig labels = Config(LabelsJson());
  const std::pair<const char*, const char*> faults[] = {
      {"", "0 examples are too few to hold any out"},
      {"{}", "line 1: label: must be a string"},
      {"[]", "line 1: not a JSON object"},
      {"{", "line 1: not valid JSON: "},
      {R"({"label": "up"})", "line 1: text: must be a string"},
      {R"({"label": 1, "text": "a"})", "line 1: label: must be a string"},
      {R"({"label": "up", "text": ""})", "line 1: a text has no tokens"},
      {R"({"label": "up", "text": "a", "b": 1})", "line 1: b: unknown key"},
      {R"({"label": "up", "label": "up", "text": "a"})", "line 1: label: given more than once"},
      {"{\"label\": \"up\", \"text\": \"a\"}\n{\"label\": \"Up\", \"text\": \"a\"}",
       "line 2: network.labels has no \"Up\""},
      {R"({"label": "up", "text": "a"})", "1 examples are too few to hold any out"}};
  for (const auto& [lines, why] : faults) {
    std::ofstream(folder_.File("labels.jsonl")) << lines;
    EXPECT_THAT(Trainer::Create(labels, folder_.File("faulty")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << lines;
  }
  TrainConfig unreadable = labels;
  unreadable.examples = {folder_.path()};
  EXPECT_THAT(
      Trainer::Create(unreadable, folder_.File("faulty")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder_.path() + ": cannot be read")));
  std::filesystem::remove(folder_.File("labels.jsonl"));
  EXPECT_THAT(Trainer::Create(labels, folder_.File("faulty")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("labels.jsonl")));
}

TEST_F(TextObjectivesTest, PairsNeedTwoThatAreHeldOut) {
  const TrainConfig config = Config(PairsJson());
  const auto create = [&](int pairs) {
    std::ofstream file(folder_.File("pairs.jsonl"));
    for (int i = 0; i < pairs; ++i) file << "{\"a\": \"a\", \"b\": \"b\"}\n";
    file.close();
    return Trainer::Create(config, folder_.File("few")).status();
  };
  EXPECT_THAT(create(9), StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("pairs.jsonl: only one pair is held out")));
  EXPECT_TRUE(create(10).ok());
}

}  // namespace
}  // namespace aft
