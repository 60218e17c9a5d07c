// Encoders and single mixers: whole texts to vectors.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/network/mixer_module.h"
#include "model/runtime/parallel.h"
#include "model/state/state_pool.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

using testing::HasSubstr;

class EncoderFixture : public RunnerFixture {
 protected:
  EncoderFixture() {
    options_.max_batch_rows = 9;
    options_.max_batch_tokens = 400;
  }

  std::unique_ptr<EncoderRunner> LoadEncoder() {
    absl::StatusOr<LoadedModel> model = LoadModel(options_);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return nullptr;
    EXPECT_EQ(model->runner, nullptr);
    EXPECT_NE(model->tokenizer, nullptr);
    return std::move(model->encoder);
  }

  static std::vector<TokenVectors> Encode(EncoderRunner& encoder,
                                          const std::vector<std::vector<TokenId>>& texts) {
    absl::StatusOr<std::vector<TokenVectors>> vectors = encoder.Encode(texts);
    EXPECT_TRUE(vectors.ok()) << vectors.status();
    return vectors.ok() ? *std::move(vectors) : std::vector<TokenVectors>(texts.size());
  }
};

class EveryEncoderTest : public EncoderFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  EveryEncoderTest() { config_ = GetParam().config; }
};

TEST_P(EveryEncoderTest, EqualsFloat64) {
  Write();
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  ASSERT_NE(encoder, nullptr);
  for (const int64_t length : {int64_t{1}, int64_t{8}, int64_t{33}, kCaseTokens}) {
    const std::vector<TokenId> text = RandomPrompt(length);
    const TokenVectors vectors = Encode(*encoder, {text})[0];
    ASSERT_EQ(vectors.size(), text.size() * 40);
    const Matrix want = NetworkReference(config_, tensors_, text);
    for (size_t i = 0; i < vectors.size(); ++i) {
      ASSERT_NEAR(vectors[i], want[i / 40][i % 40], tolerance::kVectors.each)
          << "token " << i / 40 << " of " << length;
    }
  }
}

TEST_P(EveryEncoderTest, NeighboursAndThreadsChangeNoBit) {
  Write();
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  ASSERT_NE(encoder, nullptr);
  std::vector<std::vector<TokenId>> texts;
  std::vector<TokenVectors> alone;
  for (int i = 0; i < 9; ++i) {
    texts.push_back(RandomPrompt(1 + random_.Below(44)));
    alone.push_back(Encode(*encoder, {texts.back()})[0]);
  }
  options_.intra_op_threads = 3;
  const std::unique_ptr<EncoderRunner> threaded = LoadEncoder();
  ASSERT_NE(threaded, nullptr);
  EXPECT_EQ(Encode(*encoder, texts), alone);
  EXPECT_EQ(Encode(*threaded, texts), alone);
  std::reverse(texts.begin(), texts.end());
  std::reverse(alone.begin(), alone.end());
  EXPECT_EQ(Encode(*threaded, texts), alone);
}

INSTANTIATE_TEST_SUITE_P(Property, EveryEncoderTest, testing::ValuesIn(EncoderCases()), CaseName);

class EncoderTest : public EncoderFixture {};

TEST_F(EncoderTest, RefusesWhatBreaksTheRules) {
  config_ = EncoderCases()[4].config;
  config_.max_seq_len = 50;
  Write();
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  ASSERT_NE(encoder, nullptr);
  const auto refused = [&](const std::vector<std::vector<TokenId>>& texts, const std::string& why) {
    const absl::Status status = encoder->Encode(texts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused({{1}, {}}, "sequence 1: no tokens");
  refused({{1}, {1, 256}}, "sequence 1: token 256 is out of range");
  refused({{-1}}, "sequence 0: token -1 is out of range");
  refused({RandomPrompt(51)}, "sequence 0: 51 tokens; max_seq_len is 50");
  refused(std::vector<std::vector<TokenId>>(10, {1}), "10 sequences in a batch of at most 9");
  refused(std::vector<std::vector<TokenId>>(9, RandomPrompt(45)),
          "405 tokens in a batch of at most 400");
  EXPECT_TRUE(Encode(*encoder, {}).empty());
}

TEST_F(EncoderTest, ReportsWhatTheServerMayKnow) {
  config_ = EncoderCases()[4].config;
  Write();
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  ASSERT_NE(encoder, nullptr);
  EXPECT_EQ(encoder->info().architecture, "block_local");
  EXPECT_EQ(encoder->info().state_bytes, 0);
  EXPECT_EQ(encoder->info().parameters, CountParameters(config_));
  EXPECT_EQ(encoder->width(), 40);
  EXPECT_EQ(encoder->max_batch_rows(), 9);
  EXPECT_EQ(encoder->max_batch_tokens(), 400);
}

// A single mixer: Forward in chunks and Encode, against float64.
class MixerModuleTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  MixerModuleTest() {
    config_ = GetParam().config;
    config_.architecture = Architecture::kMixer;
    config_.position = PositionKind::kNone;
    config_.vocab_size = config_.d_ff = 0;
    config_.n_layers = 1;
    config_.tokenizer.clear();
  }
};

TEST_P(MixerModuleTest, EqualsFloat64) {
  Write();
  const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(options_.checkpoint_dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto module = MixerModule::Create(checkpoint->config, checkpoint->tensors);
  ASSERT_TRUE(module.ok()) << module.status();
  const ParallelExecutor executor(1);
  const Mixer& mixer = (*module)->mixer();
  constexpr int64_t kTokens = 61;
  const bool causal = config_.mixer.causal;
  auto workspace = Activations::Create(
      config_, kTokens,
      std::max(causal ? mixer.scratch_floats() : 0, mixer.encode_scratch_floats(kTokens)),
      executor);
  ASSERT_TRUE(workspace.ok());
  const std::vector<float> x = random_.Normals(kTokens * 40);
  Matrix rows;
  for (int64_t t = 0; t < kTokens; ++t) {
    rows.emplace_back(x.begin() + t * 40, x.begin() + (t + 1) * 40);
  }
  const Matrix want = MixerLayerReference(config_, tensors_, rows);
  const auto expect = [&](const std::vector<float>& y, const char* what) {
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], want[i / 40][i % 40], tolerance::kTwoFp32.each)
          << what << ", token " << i / 40;
    }
  };
  std::vector<float> y(x.size());
  const int64_t offsets[] = {0, kTokens};
  SequenceBatch whole;
  whole.sequences = 1;
  whole.offset = offsets;
  (*module)->Encode(x.data(), whole, *workspace, y.data());
  expect(y, "Encode");
  if (!causal) return;
  auto states = StatePool::Create({mixer.state_spec()}, 1);
  ASSERT_TRUE(states.ok());
  y.assign(y.size(), 0.0F);
  const int32_t slot = 0;
  for (int64_t t = 0; t < kTokens;) {
    const int64_t chunk[] = {0, std::min(1 + random_.Below(9), kTokens - t)};
    const RaggedBatch batch = {1, &slot, &t, chunk, nullptr};
    (*module)->Forward(x.data() + t * 40, batch, states->part(0), *workspace, y.data() + t * 40);
    t += chunk[1];
  }
  expect(y, "Forward");
}

std::vector<NetworkCase> ModuleCases() {
  std::vector<NetworkCase> cases = EncoderCases();
  for (NetworkCase& one : cases) one.name = "encoder_" + one.name;
  for (const NetworkCase& one : DecoderCases()) cases.push_back(one);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Property, MixerModuleTest, testing::ValuesIn(ModuleCases()), CaseName);

}  // namespace
}  // namespace aft
