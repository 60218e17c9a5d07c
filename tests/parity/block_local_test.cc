// Compares block-local attention with lsg_converter's BlockLocalSelfAttention.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/train/forms/train_form.h"
#include "tests/parity/goldens.h"
#include "tests/property/mixer_harness.h"

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
  MixerCase mixer() const {
    MixerCase mixer = {name(), {}, kHid};
    mixer.config.kind = MixerKind::kBlockLocal;
    mixer.config.causal = causal;
    mixer.config.global_token = global;
    mixer.config.block_size = kBlock;
    mixer.config.heads = kHeads;
    return mixer;
  }

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
  TestMixer mixer(GetParam().mixer(), MixerTables());
  for (const int64_t t : kLengths) {
    const at::Tensor packed = Golden("packed")[0].narrow(0, 0, t);
    const std::vector<float> expected = Floats(OfForm(".expected." + std::to_string(t)));
    const std::vector<float> y = mixer.Encode({Floats(packed)})[0];
    EXPECT_TRUE(Close(y, expected, tolerance::kFp32)) << t;
    EXPECT_TRUE(Close(y, Floats(OfForm(".package." + std::to_string(t))), tolerance::kLayer)) << t;
    EXPECT_TRUE(Close(Floats(TrainForm(GetParam().mixer().config, packed.unsqueeze(0), {})[0]),
                      expected, tolerance::kFp32))
        << t;
    if (!GetParam().causal) continue;
    for (const int64_t chunk : {t, int64_t{3}, int64_t{1}}) {
      EXPECT_TRUE(Close(mixer.RunCut(Floats(packed), {chunk}), expected, tolerance::kFp32))
          << t << " by " << chunk;
    }
  }
}

TEST_P(BlockLocalTest, PaddingOnTheRightChangesNoTokenOfTheText) {
  const TestMixer mixer(GetParam().mixer(), MixerTables());
  const at::Tensor packed = Golden("packed");
  for (const std::string value : {"inf", "min"}) {
    const at::Tensor mask = Golden("mask." + value);
    const std::vector<std::vector<float>> y =
        mixer.Encode({Floats(packed[0]), Floats(packed[1])}, {Floats(mask[0]), Floats(mask[1])});
    TrainFormOptions options;
    options.mask = mask;
    const at::Tensor trained = TrainForm(GetParam().mixer().config, packed, {}, options);
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t t = kMaskLengths[b];
      const std::vector<float> of_text = Tokens(y[static_cast<size_t>(b)], kHid, 0, t);
      const std::vector<float> expected = Floats(OfForm(".expected.mask." + std::to_string(b)));
      EXPECT_TRUE(Close(of_text, expected, tolerance::kFp32)) << value << " " << b;
      EXPECT_TRUE(Close(Floats(trained[b].narrow(0, 0, t)), expected, tolerance::kFp32))
          << value << " " << b;
      EXPECT_TRUE(Close(of_text, Floats(OfForm(".package.mask." + value)[b].narrow(0, 0, t)),
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

TEST(BlockLocalDifferenceTest, NoTokenSeesPaddingOnTheLeftUnlikeInThePackage) {
  const TensorMap goldens = ReadGoldens("block_local").tensors;
  const std::vector<float> y =
      TestMixer(Form{true, true}.mixer(), MixerTables())
          .Encode({Floats(goldens.at("packed")[0])}, {Floats(goldens.at("left.mask"))})[0];
  const std::vector<float> text = Tokens(y, kHid, 3, kTokens);
  EXPECT_TRUE(Close(text, Floats(goldens.at("left.expected")), tolerance::kFp32));
  // The package shows the first token to all rows, although it is padding.
  EXPECT_FALSE(Close(text, Floats(goldens.at("left.package")), tolerance::kBf16));
}

TEST(BlockLocalDifferenceTest, GenerationSeesEverythingOnlyWithFullDecode) {
  const TensorMap goldens = ReadGoldens("block_local").tensors;
  const std::vector<float> packed = Floats(goldens.at("packed")[0]);
  const std::vector<float> prefill = Floats(goldens.at("causal.global.expected.19"));
  MixerCase mixer_case = Form{true, true}.mixer();
  const auto generate = [&] {
    return TestMixer(mixer_case, MixerTables()).RunCut(packed, {kTokens}, 0, 0, kTokens - 1);
  };
  EXPECT_TRUE(Close(generate(), prefill, tolerance::kFp32));

  mixer_case.config.full_decode = true;
  const std::vector<float> y = generate();
  EXPECT_TRUE(Close(Tokens(y, kHid, 0, kTokens - 1), Tokens(prefill, kHid, 0, kTokens - 1),
                    tolerance::kFp32));
  const std::vector<float> last = Tokens(y, kHid, kTokens - 1, kTokens);
  EXPECT_TRUE(Close(last, Floats(goldens.at("generation.expected")), tolerance::kFp32));
  EXPECT_TRUE(Close(last, Floats(goldens.at("generation.package")), tolerance::kLayer));
}

}  // namespace
}  // namespace aft
