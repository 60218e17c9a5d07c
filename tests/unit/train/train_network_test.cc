#include "model/train/train_network.h"

#include <limits>

#include "ATen/Context.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/train/start_values.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"
#include "tests/unit/train/tiny_network.h"

namespace aft {
namespace {

constexpr int64_t kTextTokens = 32;

// Each dropout changes the outputs and follows the global generator.
TEST(TrainNetworkTest, EachDropoutActs) {
  NetworkConfig config = TinyNetwork();
  config.mixer = MixerOf("dot_product heads=2");
  config.max_seq_len = 64;
  const TrainNetwork network(config, StartValues(config, {.seed = 1, .spread = 0.3}));
  const at::Tensor tokens = at::arange(64, at::kLong).view({2, 32});
  const at::Tensor plain = network.Forward(tokens, nullptr, {.bf16 = false});
  const Dropouts each[] = {
      {.output = 0.3}, {.embedding = 0.3}, {.feed_forward = 0.3}, {.attention = 0.3}};
  for (const Dropouts& dropouts : each) {
    const auto forward = [&](uint64_t seed) {
      at::manual_seed(seed);
      return network.Forward(tokens, nullptr, {.bf16 = false, .dropouts = dropouts});
    };
    EXPECT_FALSE(at::allclose(forward(1), plain));
    EXPECT_FALSE(at::equal(forward(1), forward(2)));
    EXPECT_TRUE(at::equal(forward(1), forward(1)));
  }
}

// The vectors of a text do not depend on the padding of its row.
TEST(TrainNetworkTest, MaskedTokensChangeNothing) {
  for (const KindSpec& kind : AllKinds()) {
    if (kind.token_shift) continue;  // only language models, whose texts have no padding
    SCOPED_TRACE(kind.name);
    NetworkConfig config = TinyNetwork();
    config.architecture = Architecture::kEncoder;
    config.mixer = ExampleMixer(kind.kind, kTextTokens);
    config.mixer.causal = false;
    config.mixer.prefix_block = 0;
    if (kind.kind == MixerKind::kAftConv) config.mixer.window = 5;
    config.max_seq_len = kTextTokens;
    const TrainNetwork network(config, StartValues(config, {.seed = 1, .spread = 0.3}));
    const at::Tensor text = at::arange(20, at::kLong).unsqueeze(0);
    const at::Tensor padded = at::cat({text, at::full({1, 12}, 77, at::kLong)}, 1);
    at::Tensor mask = at::zeros({1, kTextTokens});
    mask.slice(1, 20, kTextTokens).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor want = network.Forward(text, nullptr, {.bf16 = false});
    const at::Tensor got = network.Forward(padded, nullptr, {.bf16 = false, .mask = mask});
    EXPECT_EQ(want.size(2), config.d_model) << "there is no head";
    EXPECT_TRUE(at::allclose(got.slice(1, 0, 20), want, 1e-4, 1e-5));
  }
}

TEST(TrainNetworkTest, RestartingOneStreamLeavesTheOthersAlone) {
  for (const bool recurrence : {false, true}) {
    NetworkConfig config = TinyNetwork();
    if (recurrence) UseMixer(ExampleMixer(MixerKind::kWkv4, kTextTokens), &config);
    const TrainNetwork network(config, StartValues(config, {.seed = 1}));
    const at::Tensor tokens = at::arange(64, at::kLong).view({2, 32});
    NetworkCarry carry = EmptyNetworkCarry(config, 2);
    const TrainNetwork::Options options{.bf16 = false};
    const at::Tensor fresh = network.Forward(tokens, &carry, options);
    const at::Tensor carried = network.Forward(tokens, &carry, options);
    EXPECT_FALSE(at::equal(fresh[0], carried[0]));
    RestartStream(config, 0, carry);
    const at::Tensor mixed = network.Forward(tokens, &carry, options);
    EXPECT_TRUE(at::equal(mixed[0], fresh[0]));
    EXPECT_FALSE(at::equal(mixed[1], fresh[1]));
  }
}

// A view of the last tokens would keep the memory of all tokens.
TEST(TrainNetworkTest, TheVectorsOfATokenShiftHaveMemoryOfTheirOwn) {
  NetworkConfig config = TinyNetwork();
  UseMixer(ExampleMixer(MixerKind::kWkv4, kTextTokens), &config);
  const TrainNetwork network(config, StartValues(config, {.seed = 1}));
  NetworkCarry carry = EmptyNetworkCarry(config, 2);
  network.Forward(at::arange(64, at::kLong).view({2, 32}), &carry, {.bf16 = false});
  for (const LayerCarry& layer : carry) {
    for (const at::Tensor& vectors : {layer.shift, layer.feed_forward_shift}) {
      EXPECT_EQ(vectors.storage().nbytes(), vectors.nbytes());
    }
  }
}

}  // namespace
}  // namespace aft
