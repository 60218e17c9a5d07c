// Block-local attention against lsg_converter's BlockLocalSelfAttention.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/train/forms/train_form.h"
#include "tests/parity/goldens.h"
#include "tests/parity/mixer_run.h"

namespace aft {
namespace {

constexpr int64_t kBlock = 4;
constexpr int64_t kHeads = 2;
constexpr int64_t kHid = 16;
constexpr int64_t kTokens = 5 * kBlock - 1;
constexpr int64_t kLengths[] = {1, kBlock, 2 * kBlock, 2 * kBlock + 1, kTokens};
constexpr int64_t kMaskLengths[] = {16, 9};

struct Form {
  bool causal;
  bool global;

  std::string name() const {
    return std::string(causal ? "causal" : "bidirectional") + (global ? ".global" : ".local");
  }
  MixerConfig config() const {
    MixerConfig config;
    config.kind = MixerKind::kBlockLocal;
    config.causal = causal;
    config.global_token = global;
    config.block_size = kBlock;
    config.heads = kHeads;
    return config;
  }
  MixerRun Run() const { return MixerRun(config(), kHid, {}, kTokens); }

  friend void PrintTo(const Form& form, std::ostream* out) { *out << form.name(); }
};

class BlockLocalTest : public testing::TestWithParam<Form> {
 protected:
  BlockLocalTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  at::Tensor Golden(const std::string& name) const { return goldens_.at(name); }
  at::Tensor OfForm(const std::string& name) const { return Golden(GetParam().name() + name); }

  const TensorMap goldens_ = ReadGoldens("block_local").tensors;
};

TEST_P(BlockLocalTest, AttentionGivesTheSameOutputs) {
  const MixerRun run = GetParam().Run();
  for (const int64_t t : kLengths) {
    const at::Tensor packed = Golden("packed")[0].narrow(0, 0, t);
    const at::Tensor expected = OfForm(".expected." + std::to_string(t));
    const at::Tensor y = run.Encode(packed);
    EXPECT_TRUE(Close(y, expected, tolerance::kFp32)) << t;
    EXPECT_TRUE(Close(y, OfForm(".package." + std::to_string(t)), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(TrainForm(GetParam().config(), packed.unsqueeze(0), {})[0], expected,
                      tolerance::kFp32))
        << t;
    if (!GetParam().causal) continue;
    for (const int64_t chunk : {t, int64_t{3}, int64_t{1}}) {
      EXPECT_TRUE(Close(run.Forward(packed, chunk), expected, tolerance::kFp32))
          << t << " by " << chunk;
    }
  }
}

TEST_P(BlockLocalTest, PaddingOnTheRightChangesNoTokenOfTheText) {
  const MixerRun run = GetParam().Run();
  const at::Tensor packed = Golden("packed").flatten(0, 1);
  for (const std::string value : {"inf", "min"}) {
    const at::Tensor mask = Golden("mask." + value);
    const at::Tensor before = mask.clone();
    const at::Tensor y =
        run.Encode(packed, {kTokens, kTokens}, mask.flatten()).view({2, kTokens, kHid});
    EXPECT_TRUE(mask.equal(before));  // The package writes into it.
    TrainFormOptions options;
    options.mask = mask;
    const at::Tensor trained = TrainForm(GetParam().config(), Golden("packed"), {}, options);
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t t = kMaskLengths[b];
      const at::Tensor expected = OfForm(".expected.mask." + std::to_string(b));
      EXPECT_TRUE(Close(y[b].narrow(0, 0, t), expected, tolerance::kFp32)) << value << " " << b;
      EXPECT_TRUE(Close(trained[b].narrow(0, 0, t), expected, tolerance::kFp32))
          << value << " " << b;
      EXPECT_TRUE(Close(y[b].narrow(0, 0, t), OfForm(".package.mask." + value)[b].narrow(0, 0, t),
                        tolerance::kLayer))
          << value << " " << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, BlockLocalTest,
                         testing::Values(Form{false, false}, Form{false, true}, Form{true, false},
                                         Form{true, true}),
                         [](const auto& param_info) {
                           return std::string(param_info.param.causal ? "Causal"
                                                                      : "Bidirectional") +
                                  (param_info.param.global ? "Global" : "Local");
                         });

TEST(BlockLocalDifferenceTest, PaddingOnTheLeftIsSeenByNoOneHereOnly) {
  const TensorMap goldens = ReadGoldens("block_local").tensors;
  const at::Tensor y =
      Form{true, true}.Run().Encode(goldens.at("packed")[0], {kTokens}, goldens.at("left.mask"));
  const at::Tensor text = y.narrow(0, 3, kTokens - 3);
  EXPECT_TRUE(Close(text, goldens.at("left.expected"), tolerance::kFp32));
  // The package shows the first token to all, although it is padding.
  EXPECT_FALSE(Close(text, goldens.at("left.package"), tolerance::kBf16));
}

TEST(BlockLocalDifferenceTest, GenerationSeesEverythingOnRequestOnly) {
  const TensorMap goldens = ReadGoldens("block_local").tensors;
  const at::Tensor packed = goldens.at("packed")[0];
  const at::Tensor prefill = goldens.at("causal.global.expected.19");
  MixerConfig config = Form{true, true}.config();
  EXPECT_TRUE(Close(MixerRun(config, kHid, {}, kTokens).Forward(packed, kTokens, kTokens - 1),
                    prefill, tolerance::kFp32));

  config.full_decode = true;
  const at::Tensor y = MixerRun(config, kHid, {}, kTokens).Forward(packed, kTokens, kTokens - 1);
  EXPECT_TRUE(
      Close(y.narrow(0, 0, kTokens - 1), prefill.narrow(0, 0, kTokens - 1), tolerance::kFp32));
  EXPECT_TRUE(
      Close(y.narrow(0, kTokens - 1, 1), goldens.at("generation.expected"), tolerance::kFp32));
  EXPECT_TRUE(
      Close(y.narrow(0, kTokens - 1, 1), goldens.at("generation.package"), tolerance::kLayer));
}

}  // namespace
}  // namespace aft
