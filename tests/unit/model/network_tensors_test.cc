// Tests which tensors a config needs.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/config/tensors.h"
#include "tests/support/mixer_of.h"
#include "tests/unit/model/config_cases.h"

namespace aft {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(NetworkTensorsTest, CountsTheWeightsOfASmallNetwork) {
  NetworkConfig config;
  config.vocab_size = 5;
  config.d_model = 2;
  config.n_layers = 3;
  config.d_ff = 7;
  config.mixer.window = 4;
  // Per layer: norms 2 * (2 + 2), qkv 6 * 2 + 6, out 2 * 2 + 2, band 4, up 7 * 2 + 7, down 2 * 7
  // + 2.
  const int64_t layer = 8 + 18 + 6 + 4 + 21 + 16;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4 + (5 * 2 + 5));
  config.tie_embeddings = true;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4 + 5);
  config.head_bias = false;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * layer + 4);
  config.mixer.band_rows = 10;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer + 36) + 4);
  config.mixer = MixerOf("aft_simple");
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer - 4) + 4);
  config.qkv_bias = false;
  EXPECT_EQ(CountParameters(config), 5 * 2 + 3 * (layer - 4 - 6) + 4);
  config.position = PositionKind::kLearned;
  config.position_rows = 11;
  EXPECT_EQ(CountParameters(config), (5 + 11) * 2 + 3 * (layer - 4 - 6) + 4);
}

TEST(NetworkTensorsTest, TensorsFollowTheArchitecture) {
  const auto names = [](const Json& json) {
    std::string joined;
    for (const TensorSpec& spec : ExpectedTensors(Accepted(json))) joined += spec.name + " ";
    return joined;
  };
  EXPECT_EQ(names(Module("aft_simple")),
            "layers.0.mixer.qkv.weight layers.0.mixer.qkv.bias layers.0.mixer.out.weight "
            "layers.0.mixer.out.bias ");
  EXPECT_THAT(names(Encoder("aft_simple")), Not(HasSubstr("head.")));
  EXPECT_THAT(names(Causal("aft_simple")), HasSubstr("norm.bias head.weight head.bias"));
  EXPECT_THAT(names(Causal("additive score_width=3", 9)), HasSubstr("layers.1.mixer.score.v "));
}

TEST(NetworkTensorsTest, TensorsOfTokenShiftsAreThoseOfRwkv) {
  const auto shapes = [](const Json& json) {
    std::string joined;
    for (const TensorSpec& spec : ExpectedTensors(Accepted(json))) {
      absl::StrAppend(&joined, spec.name, " ", absl::StrJoin(spec.shape, "x"), "\n");
    }
    return joined;
  };
  EXPECT_THAT(shapes(Rwkv("wkv4", "gated_channel_mix")),
              HasSubstr("layers.1.norm1.bias 48\nlayers.1.mixer.shift 3x48\n"
                        "layers.1.mixer.r.weight 48x48\nlayers.1.mixer.k.weight 48x48\n"
                        "layers.1.mixer.v.weight 48x48\nlayers.1.mixer.decay 48\n"
                        "layers.1.mixer.bonus 48\nlayers.1.mixer.out.weight 48x48\n"
                        "layers.1.norm2.weight 48\nlayers.1.norm2.bias 48\n"
                        "layers.1.ffn.shift 2x48\nlayers.1.ffn.up.weight 96x48\n"
                        "layers.1.ffn.gate.weight 48x48\nlayers.1.ffn.down.weight 48x96\n"
                        "norm.weight 48\n"));
  const std::string seven = shapes(Rwkv(kWkv7, "channel_mix"));
  EXPECT_THAT(seven, HasSubstr("layers.0.mixer.g.up.weight 48x7\nlayers.0.mixer.key_scale 48\n"));
  EXPECT_THAT(seven,
              HasSubstr("layers.1.mixer.w.down.weight 4x48\nlayers.1.mixer.w.up.weight 48x4\n"
                        "layers.1.mixer.w.up.bias 48\n"));
  EXPECT_THAT(
      seven, HasSubstr("layers.1.mixer.v_gate.down.weight 6x48\n"
                       "layers.1.mixer.v_gate.up.weight 48x6\nlayers.1.mixer.v_gate.up.bias 48\n"));
  EXPECT_THAT(seven, Not(HasSubstr("layers.0.mixer.v_gate")));
  EXPECT_THAT(seven, HasSubstr("layers.0.ffn.shift 1x48\n"));
}

TEST(NetworkTensorsTest, TheLargestConfigsDoNotOverflow) {
  for (Json json : {Causal("aft_local window=65536 band_rows=1048576", 1 << 20),
                    Causal("aft_full band_rows=1048576 bias=full", 1 << 20),
                    Causal("additive heads=65536 score_width=4096", 2047),
                    Causal("aft_conv window=65536 heads=65536"),
                    Rwkv("wkv7 heads=1 decay_rank=65536 rate_rank=1 value_rank=1 gate_rank=1",
                         "channel_mix")}) {
    json.update({{"d_model", 65536}, {"n_layers", 1024}, {"d_ff", 262144}});
    EXPECT_GT(CountParameters(Accepted(json)), int64_t{1} << 45);
  }
}

}  // namespace
}  // namespace aft
