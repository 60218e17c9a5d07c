// Tests language models of every mixer kind, position, activation and width: they equal float64,
// and their results do not depend on how a text is cut. Runs on every device.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/snapshot_bytes.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/close.h"

namespace aft {
namespace {

using testing::HasSubstr;

class EveryKindTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EveryKindTest() { config_ = GetParam().config; }
};

// Compares greedy generation: every token whose margin is clear, and every log-probability.
TEST_P(EveryKindTest, GenerationEqualsFloat64) {
  const std::unique_ptr<ModelRunner> runner = Load();
  std::vector<TokenId> text = RandomText(33);
  const size_t prompt = text.size();
  const std::vector<SampledToken> sampled = Generate(*runner, 3, text, 40, Greedy(), 9);
  ASSERT_EQ(sampled.size(), 40U);
  for (const SampledToken& token : sampled) text.push_back(token.id);
  const Matrix logits = NetworkReference(config_, tensors_, text);
  for (size_t i = 0; i < sampled.size(); ++i) {
    const std::vector<double> logprobs = LogSoftmax(logits[prompt + i - 1]);
    const double best = *std::max_element(logprobs.begin(), logprobs.end());
    // The sampled token is the best one, or ties with it within the tolerance.
    EXPECT_NEAR(logprobs[static_cast<size_t>(sampled[i].id)], best, device_.log_probability);
    EXPECT_NEAR(sampled[i].logprob, best, device_.log_probability);
    ASSERT_EQ(sampled[i].top.size(), 3U);
    for (const TokenLogprob& top : sampled[i].top) {
      EXPECT_NEAR(top.logprob, logprobs[static_cast<size_t>(top.id)], device_.log_probability);
    }
  }
}

TEST_P(EveryKindTest, ScoresEqualFloat64HoweverTheTextIsCut) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const std::vector<TokenId> text = RandomText(kCaseTokens);
  const Matrix logits = NetworkReference(config_, tensors_, text);
  for (const size_t chunk : {1U, 7U, 64U}) {
    const std::vector<SampledToken> scored = Score(*runner, 2, text, 0, chunk);
    ASSERT_EQ(scored.size(), text.size() - 1);
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_EQ(scored[i].id, text[i + 1]);
      EXPECT_TRUE(scored[i].top.empty());
      EXPECT_NEAR(scored[i].logprob, LogSoftmax(logits[i])[static_cast<size_t>(text[i + 1])],
                  device_.log_probability)
          << i << " in chunks of " << chunk;
    }
  }
}

// The hidden vectors are the vectors of the same network without its head.
TEST_P(EveryKindTest, HiddenVectorsEqualFloat64HoweverTheTextIsCut) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const std::vector<TokenId> text = RandomText(kCaseTokens);
  NetworkConfig headless = config_;
  headless.architecture = Architecture::kEncoder;
  const std::vector<double> expected = Flat(NetworkReference(headless, tensors_, text));
  EXPECT_EQ(runner->info().hidden_width, config_.d_model);
  EXPECT_EQ(runner->info().pooling, Pooling::kLast);
  const std::vector<float> whole = Hidden(*runner, 2, text, 64);
  EXPECT_TRUE(Close(whole, expected, device_.vectors));
  for (const size_t chunk : {1U, 7U}) {
    EXPECT_TRUE(Same(Hidden(*runner, 2, text, chunk), whole)) << chunk;
  }
}

TEST_P(EveryKindTest, CuttingThePromptChangesNoBit) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const std::vector<TokenId> prompt = RandomText(50);
  const std::vector<SampledToken> whole = Generate(*runner, 0, prompt, 20, Warm(7), 64);
  ASSERT_EQ(whole.size(), 20U);
  // On a slow device the results are only as near to each other as to the formula, which other
  // tests in this file check. So fewer chunk lengths are enough there.
  std::vector<size_t> chunks = {1, 31, 2, 7, 16, 49};
  if (device_.slow) chunks.resize(2);
  for (const size_t chunk : chunks) {
    EXPECT_TRUE(Same(Generate(*runner, 1, prompt, 20, Warm(7), chunk), whole)) << chunk;
  }
}

// Scoring generated tokens gives the log-probabilities that the model reported when it generated
// them.
TEST_P(EveryKindTest, ScoringReportsTheBitsThatGenerationReported) {
  const std::unique_ptr<ModelRunner> runner = Load();
  std::vector<TokenId> text = RandomText(20);
  SamplingParams params = Warm(3);
  params.top_logprobs = 4;
  const int64_t count = device_.slow ? 25 : 60;
  const std::vector<SampledToken> sampled = Generate(*runner, 0, text, count, params, 64);
  ASSERT_EQ(sampled.size(), static_cast<size_t>(count));
  for (const SampledToken& token : sampled) text.push_back(token.id);
  for (const size_t chunk : {5U, 64U}) {
    std::vector<SampledToken> scored = Score(*runner, 1, text, 4, chunk);
    ASSERT_EQ(scored.size(), 19 + sampled.size());
    scored.erase(scored.begin(), scored.begin() + 19);
    EXPECT_TRUE(Same(scored, sampled)) << chunk;
  }
}

// The steps have prompts, of which some are scored and some return hidden vectors, then single
// tokens.
TEST_P(EveryKindTest, NeighboursAndThreadsChangeNoBit) {
  const std::unique_ptr<ModelRunner> alone = Load();
  options_.intra_op_threads = 3;
  const std::unique_ptr<ModelRunner> threaded = Load();
  StepInput together;
  for (int32_t slot = 0; slot < 8; ++slot) {
    for (ModelRunner* runner : {alone.get(), threaded.get()}) {
      Bind(*runner, slot, slot == 7 ? Greedy() : Warm(static_cast<uint64_t>(slot)));
    }
    const std::vector<TokenId> text = RandomText(1 + random_.Below(7));
    if (slot % 2 == 0) {
      together.rows.push_back({slot, 0, text, RowOutput::kScore, text});
    } else {
      together.rows.push_back({slot, 0, text, RowOutput::kLast});
    }
    if (slot % 3 == 0) {
      together.rows.back() = {slot, 0, text, RowOutput::kHidden};
      together.rows.back().hidden = 1 + random_.Below(static_cast<int64_t>(text.size()));
    }
  }
  for (int round = 0; round < (device_.slow ? 2 : 4); ++round) {
    StepOutput apart;
    for (const StepRow& row : together.rows) {
      StepOutput one = Step(*alone, {{row}});
      for (SampledToken& token : one.sampled) apart.sampled.push_back(std::move(token));
      for (auto& tokens : one.scored) apart.scored.push_back(std::move(tokens));
      for (auto& vectors : one.hidden) apart.hidden.push_back(std::move(vectors));
    }
    const StepOutput all = Step(*threaded, together);
    EXPECT_TRUE(Same(all.sampled, apart.sampled)) << round;
    ASSERT_EQ(all.scored.size(), apart.scored.size());
    for (size_t i = 0; i < all.scored.size(); ++i) {
      EXPECT_TRUE(Same(all.scored[i], apart.scored[i])) << round << ", row " << i;
    }
    ASSERT_EQ(all.hidden.size(), apart.hidden.size());
    for (size_t i = 0; i < all.hidden.size(); ++i) {
      EXPECT_TRUE(Same(all.hidden[i], apart.hidden[i]));
    }
    for (StepRow& row : together.rows) {
      const int64_t position = row.first_position + static_cast<int64_t>(row.tokens.size());
      row = {row.slot, position, RandomText(1), RowOutput::kLast, {}};
    }
  }
}

TEST_P(EveryKindTest, ForksAndSnapshotsContinueBitForBit) {
  const std::unique_ptr<ModelRunner> runner = Load();
  const std::unique_ptr<ModelRunner> other = Load();
  Generate(*other, 4, RandomText(60), 5, Greedy(), 64);  // a sequence that will be replaced
  const std::vector<TokenId> prompt = RandomText(21);
  const std::vector<SampledToken> sampled = Generate(*runner, 0, prompt, 8, Warm(9), 64);
  ASSERT_EQ(sampled.size(), 8U);
  const int64_t position = 28;
  const std::string snapshot = SnapshotOf(*runner, 0);
  EXPECT_LE(static_cast<int64_t>(snapshot.size()), MaxSnapshotBytes(runner->info()));
  Bind(*runner, 6, ForkOf{0}, {Warm(9), 8});

  // The fork continues with another token first, which shows that these are two sequences.
  const TokenId last = sampled.back().id;
  Continue(*runner, 6, position, (last + 1) % 256, 10);
  const std::vector<SampledToken> original = Continue(*runner, 0, position, last, 30);
  ASSERT_EQ(original.size(), 30U);
  Bind(*runner, 6, ForkOf{0}, {Warm(9), 38});
  EXPECT_TRUE(Same(Continue(*runner, 6, position + 30, last, 20),
                   Continue(*runner, 0, position + 30, last, 20)));

  EXPECT_EQ(Bind(*other, 4, snapshot, {Warm(9), 8}), position);
  EXPECT_TRUE(Same(Continue(*other, 4, position, last, 30), original));
  Bind(*runner, 3, snapshot, {});
  EXPECT_EQ(SnapshotOf(*runner, 3), snapshot);
}

INSTANTIATE_TEST_SUITE_P(Property, EveryKindTest, testing::ValuesIn(TestedCases(DecoderCases())),
                         CaseName);

class GeneratedTest : public RunnerFixture {};

// With full_decode a generated token sees every token before it, and a token of the prompt only its
// blocks. In a model of one layer, keys and values do not depend on what earlier tokens saw. So
// plain dot-product attention with the same weights is the reference.
TEST_F(GeneratedTest, WithFullDecodeGeneratedTokensSeeEverythingAndThePromptDoesNot) {
  config_.n_layers = 1;
  config_.max_seq_len = kCaseTokens;
  config_.mixer = {.kind = MixerKind::kBlockLocal,
                   .heads = 4,
                   .block_size = 8,
                   .global_token = false,
                   .full_decode = true};
  const std::unique_ptr<ModelRunner> runner = Load();
  NetworkConfig dense = config_;
  dense.mixer = {.kind = MixerKind::kDotProduct, .heads = 4};
  const std::vector<TokenId> text = RandomText(60);
  const Matrix seen = NetworkReference(dense, tensors_, text);
  const Matrix blocks = NetworkReference(config_, tensors_, text);
  // Scores the prompt; then reads it again, samples a token after it, and scores the rest one by
  // one.
  const std::vector<TokenId> prompt = Slice(text, 0, 30);
  Bind(*runner, 0, Greedy());
  std::vector<SampledToken> scored =
      Step(*runner, {{{0, 0, prompt, RowOutput::kScore, Slice(text, 1, 31)}}}).scored.at(0);
  Bind(*runner, 0, Greedy());
  Step(*runner, {{{0, 0, prompt, RowOutput::kLast}}});
  for (size_t t = 30; t + 1 < 60; ++t) {
    const StepRow row = {0, static_cast<int64_t>(t), {text[t]}, RowOutput::kScore, {text[t + 1]}};
    scored.push_back(Step(*runner, {{row}}).scored.at(0)[0]);
  }
  for (size_t t = 0; t + 1 < 60; ++t) {
    const Matrix& want = t < 30 ? blocks : seen;
    EXPECT_NEAR(scored[t].logprob, LogSoftmax(want[t])[static_cast<size_t>(text[t + 1])],
                device_.log_probability)
        << t;
  }
}

class PositionTest : public RunnerFixture {};

TEST_F(PositionTest, LearnedPositionsEndTheText) {
  config_.position = PositionKind::kLearned;
  config_.position_rows = 30;
  config_.max_seq_len = 30;
  const std::unique_ptr<ModelRunner> runner = Load();
  EXPECT_EQ(runner->info().max_seq_len, 30);
  EXPECT_EQ(Generate(*runner, 0, RandomText(29), 2, Greedy(), 64).size(), 2U);
  const absl::Status beyond = runner->Submit({{{0, 30, {1}, RowOutput::kLast}}}).status();
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("position 30 is beyond max_seq_len 30"));
}

// Sinusoidal positions have no limit: rows beyond the cached ones are computed, with the same bits
// as if they had been cached.
TEST_F(PositionTest, WavesContinueBeyondTheirCache) {
  config_.position = PositionKind::kSinusoidal;
  config_.embedding_scale = 0.01F;  // the positions decide
  config_.mixer = {.kind = MixerKind::kBlockLocal, .block_size = 16, .global_token = false};
  config_.n_layers = 1;
  const std::unique_ptr<ModelRunner> runner = Load();
  // Only the last two blocks count, so that the reference may start at position 4080.
  constexpr size_t kStart = 4080;
  const std::vector<TokenId> text = RandomText(kStart + 60);
  const std::vector<SampledToken> scored = Score(*runner, 0, text, 0, 64);
  ASSERT_EQ(scored.size(), text.size() - 1);
  NetworkConfig tail = config_;
  tail.position = PositionKind::kLearned;
  tail.position_rows = 60;
  tail.max_seq_len = 60;
  tensors_["position.weight"] = tensors_["embed.weight"].narrow(0, 0, 60).clone();
  float* rows = tensors_["position.weight"].data_ptr<float>();
  for (int t = 0; t < 60; ++t) {
    for (int c = 0; c < 40; ++c) {
      const double angle = (kStart + static_cast<double>(t)) / std::pow(10000.0, c / 2 * 2 / 40.0);
      rows[t * 40 + c] = static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  const Matrix logits = NetworkReference(tail, tensors_, Slice(text, kStart, text.size()));
  for (size_t t = 16; t + 1 < 60; ++t) {  // from its second block on, the tail sees all it should
    EXPECT_NEAR(scored[kStart + t].logprob,
                LogSoftmax(logits[t])[static_cast<size_t>(text[kStart + t + 1])],
                device_.log_probability)
        << t;
  }
}

}  // namespace
}  // namespace aft
