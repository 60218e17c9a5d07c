#include "tests/cuda/aft_layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "model/config/config.h"
#include "tests/cuda/compare.h"
#include "tests/support/mixer_reference.h"

namespace aft::aft_layer {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

std::string Layer::Name() const {
  return "hid " + std::to_string(hid) + ", window " + std::to_string(window) +
         (ring == Number::kBf16 ? ", bf16 ring" : "") + ", H " + std::to_string(prefix_block) +
         ", bias rows " + std::to_string(bias_rows) + ", spread " + std::to_string(spread) +
         (causal ? "" : ", bidirectional");
}

LayerStates::LayerStates(TestRandom& random, const Layer& layer, int64_t slots, Storage storage)
    : LayerStates(
          layer, slots, storage,
          random.Normals(std::max<int64_t>(layer.bias_rows * layer.columns(), 1), layer.spread)) {}

LayerStates::LayerStates(const Layer& layer, int64_t slots, Storage storage,
                         std::vector<float> table)
    : layer_(layer),
      slots_(slots),
      storage_(storage),
      table_(std::move(table)),
      cpu_bias_(layer.window == 0
                    ? kernels::AftBias()
                    : kernels::AftBias(table_.data(), layer.bias_rows, layer.window, layer.causal)),
      bias_(table_),
      slot_stride_((layer.layout().Floats() + 15) / 16 * 16),
      states_(Size(slots * slot_stride_)),
      cpu_states_(states_.Get()) {
  model_.hid = layer.hid;
  model_.window = layer.window;
  model_.prefix_block = layer.prefix_block;
  model_.ring = layer.ring;
  model_.causal = layer.causal;
  model_.bias = layer.window > 0 ? bias_.get() : nullptr;
  model_.bias_rows = layer.bias_rows;
  model_.wide = cpu_bias_.wide;
}

std::vector<float> LayerStates::Input(TestRandom& random, const std::string& keys,
                                      int64_t tokens) const {
  return Rounded(RandomQkv(random, keys, tokens, layer_.hid), storage_.in);
}

std::vector<double> LayerStates::Reference(const std::vector<float>& qkv,
                                           const std::vector<float>& mask) const {
  const int64_t hid = layer_.hid;
  std::vector<double> packed(qkv.begin(), qkv.end());
  if (layer_.ring == Number::kBf16 && layer_.window > 1) {
    const std::vector<float> rounded = Rounded(qkv, Number::kBf16);
    for (size_t i = 0; i < packed.size(); ++i) {
      if (i % Size(3 * hid) >= Size(hid)) packed[i] = static_cast<double>(rounded[i]);
    }
  }
  MixerConfig config;
  config.kind = layer_.window == 0 ? MixerKind::kAftSimple : MixerKind::kAftLocal;
  config.window = layer_.window;
  config.band_rows = layer_.bias_rows > 1 ? layer_.bias_rows : 0;
  config.length_policy = LengthPolicy::kClamp;
  config.prefix_block = layer_.prefix_block;
  config.causal = layer_.causal;
  std::vector<double> latest_first(table_.begin(), table_.end());
  if (layer_.window > 0) {
    for (auto row = latest_first.begin(); row != latest_first.end(); row += layer_.columns()) {
      std::reverse(row, row + layer_.columns());
    }
  }
  return ReferenceMixer(config, hid, packed, {{"w.band", latest_first}},
                        {mask.begin(), mask.end()});
}

std::vector<float> LayerStates::ChunkOnCpu(int32_t slot, int64_t position,
                                           const std::vector<float>& qkv) {
  const kernels::AftParams params = {layer_.hid, &cpu_bias_, layer_.prefix_block, layer_.ring};
  std::vector<float> scratch(Size(kernels::AftScratchFloats(params)));
  const int64_t tokens = static_cast<int64_t>(qkv.size()) / (3 * layer_.hid);
  std::vector<float> y(Size(tokens * layer_.hid));
  const int64_t offset[] = {0, tokens};
  kernels::AftForward(params, {1, &slot, &position, offset}, qkv.data(), 3 * layer_.hid,
                      cpu_states_.data(), slot_stride_, y.data(), layer_.hid, scratch.data(), 0,
                      kernels::AftUnits(params, 1));
  return y;
}

std::vector<float> LayerStates::State(int32_t slot) const {
  const std::vector<float> all = states_.Get();
  const auto begin = all.begin() + slot * slot_stride_;
  return {begin, begin + slot_stride_};
}

void LayerStates::ExpectStatesOfCpu(const std::vector<int32_t>& slots) const {
  const kernels::AftStateLayout layout = layer_.layout();
  const std::vector<float> all = states_.Get();
  for (const int32_t slot : slots) {
    const float* const state = all.data() + slot * slot_stride_;
    const float* const cpu = cpu_states_.data() + slot * slot_stride_;
    for (int64_t p = 0; p < layout.prefixes(); ++p) {
      for (int64_t c = 0; c < layer_.hid; ++c) {
        const int64_t num = p * 3 * layer_.hid + c;
        const int64_t den = num + layer_.hid;
        const float scale = std::max(1.0F, cpu[den]);
        ASSERT_NEAR(state[num], cpu[num], 1e-5 * scale) << "slot " << slot << ", channel " << c;
        ASSERT_NEAR(state[den], cpu[den], 1e-5 * scale) << "slot " << slot << ", channel " << c;
        ASSERT_EQ(state[den + layer_.hid], cpu[den + layer_.hid]) << "slot " << slot;
      }
    }
    const int64_t ring = layout.KRing();
    const auto bytes = Size(layout.Floats() - ring) * sizeof(float);
    ASSERT_EQ(std::memcmp(state + ring, cpu + ring, bytes), 0) << "ring of slot " << slot;
  }
}

}  // namespace aft::aft_layer
