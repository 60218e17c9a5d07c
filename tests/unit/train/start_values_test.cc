#include "model/train/start_values.h"

#include <cmath>
#include <string>

#include "ATen/TensorOperators.h"
#include "ATen/ops/abs.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

NetworkConfig Network(const std::string& mixer) {
  NetworkConfig config;
  config.architecture = Architecture::kEncoder;
  config.vocab_size = 256;
  config.d_model = 64;
  config.n_layers = 2;
  config.d_ff = 128;
  config.position = PositionKind::kLearned;
  config.position_rows = config.max_seq_len = 48;
  config.labels = {"a", "b"};
  config.mixer = MixerOf(mixer);
  return config;
}

double Largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }
double Spread(const at::Tensor& tensor) { return tensor.std().item<double>(); }

TEST(StartValuesTest, EachRuleHasItsBoundsAndSpreads) {
  const NetworkConfig network = Network("aft_full band_rows=48 bias=full causal=false");
  const TensorMap narrow = StartValues(network, {.seed = 1});
  EXPECT_NEAR(Spread(narrow.at("layers.0.mixer.qkv.weight")), 0.02, 0.001);
  EXPECT_NEAR(Spread(narrow.at("layers.1.ffn.down.weight")), 0.02 / 2, 0.001) << "sqrt(2 L) = 2";
  EXPECT_EQ(Largest(narrow.at("layers.0.ffn.up.bias")), 0);

  const TensorMap linear = StartValues(network, {.seed = 1, .rule = StartRule::kLinear});
  for (const auto& [name, inputs] : {std::pair<const char*, double>{"layers.0.mixer.qkv", 64},
                                     {"layers.1.mixer.out", 64},
                                     {"layers.0.ffn.up", 64},
                                     {"layers.0.ffn.down", 128},
                                     {"head", 64}}) {
    SCOPED_TRACE(name);
    const double bound = 1 / std::sqrt(inputs);
    const at::Tensor& weight = linear.at(std::string(name) + ".weight");
    const at::Tensor& bias = linear.at(std::string(name) + ".bias");
    EXPECT_LE(Largest(weight), bound);
    EXPECT_NEAR(Spread(weight), bound / std::sqrt(3.0), 0.1 * bound);
    EXPECT_LE(Largest(bias), bound);
    EXPECT_GT(Largest(bias), 0.02 * bound);
  }
  EXPECT_NEAR(Spread(linear.at("embed.weight")), 1, 0.03);
  EXPECT_NEAR(Spread(linear.at("position.weight")), 1, 0.05);

  const TensorMap xavier = StartValues(network, {.seed = 1, .rule = StartRule::kXavier});
  const double bound = std::sqrt(6.0 / (64 + 128));
  EXPECT_LE(Largest(xavier.at("layers.0.ffn.up.weight")), bound);
  EXPECT_GT(Largest(xavier.at("layers.0.ffn.up.weight")), 0.98 * bound);
  EXPECT_LE(Largest(xavier.at("embed.weight")), std::sqrt(6.0 / (256 + 64)));
  EXPECT_LE(Largest(xavier.at("layers.0.ffn.down.bias")), 1 / std::sqrt(128.0));
  EXPECT_EQ(Largest(xavier.at("position.weight")), 0);
  for (const TensorMap* tensors : {&narrow, &linear, &xavier}) {
    EXPECT_EQ(tensors->at("norm.weight").sum().item<double>(), 64);
    EXPECT_EQ(Largest(tensors->at("layers.1.norm2.bias")), 0);
    EXPECT_EQ(tensors->size(), ExpectedTensors(network).size());
  }
}

TEST(StartValuesTest, OnlyTensorsThatStartAtZeroAreZero) {
  for (const KindSpec& kind : AllKinds()) {
    NetworkConfig network = Network("aft_simple");
    network.architecture = Architecture::kDecoderLm;
    network.labels.clear();
    UseMixer(ExampleMixer(kind.kind, /*tokens=*/48), &network);
    const TensorMap values = StartValues(network, {.seed = 1});
    for (const TensorSpec& spec : ExpectedTensors(network)) {
      EXPECT_EQ(Largest(values.at(spec.name)) == 0, spec.start == TensorStart::kZeros)
          << kind.name << ": " << spec.name;
    }
  }
}

TEST(StartValuesTest, BiasesOfPositionStartAsAsked) {
  const NetworkConfig full = Network("aft_full band_rows=48 bias=full causal=false");
  const auto biases = [](const NetworkConfig& network, BiasStart start, const char* name) {
    return StartValues(network, {.seed = 1, .bias = start}).at(name);
  };
  EXPECT_EQ(Largest(biases(full, BiasStart::kZeros, "layers.0.mixer.w.full")), 0);
  const at::Tensor xavier = biases(full, BiasStart::kXavier, "layers.0.mixer.w.full");
  EXPECT_LE(Largest(xavier), std::sqrt(6.0 / 96));
  EXPECT_NEAR(Spread(xavier), std::sqrt(2.0 / 96), 0.01);
  // A slope falls on both sides of the token itself, over 2 tokens in layer 0 and 4 in layer 1.
  const at::Tensor slope = biases(full, BiasStart::kSlope, "layers.1.mixer.w.full");
  EXPECT_EQ(slope[10][10].item<double>(), 5);
  EXPECT_EQ(slope[10][9].item<double>(), 3.75);
  EXPECT_EQ(slope[10][11].item<double>(), 3.75);
  EXPECT_EQ(slope[10][14].item<double>(), 0);

  const NetworkConfig local = Network("aft_local window=5 causal=false");
  const at::Tensor band = biases(local, BiasStart::kSlope, "layers.0.mixer.w.band");
  ASSERT_EQ(band.size(1), 9);
  EXPECT_EQ(band[0][4].item<double>(), 5) << "offset 0 is the middle column";
  EXPECT_EQ(band[0][3].item<double>(), 2.5);
  EXPECT_EQ(band[0][5].item<double>(), 2.5);
  EXPECT_EQ(band[0][0].item<double>(), 0);
  EXPECT_EQ(band[0][8].item<double>(), 0);
  EXPECT_EQ(Largest(biases(local, BiasStart::kZeros, "layers.0.mixer.w.band")), 0);

  NetworkConfig causal = Network("aft_local window=5");
  causal.architecture = Architecture::kDecoderLm;
  causal.labels.clear();
  EXPECT_EQ(biases(causal, BiasStart::kSlope, "layers.0.mixer.w.band")[0][0].item<double>(), 5);

  // Factors never start at zero, because they would have no gradient.
  const NetworkConfig factors =
      Network("aft_full band_rows=48 causal=false bias=factors bias_rank=4");
  EXPECT_GT(Largest(biases(factors, BiasStart::kZeros, "layers.0.mixer.w.u")), 0);
}

}  // namespace
}  // namespace aft
