#include "tests/property/aft_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
// Before Highway: the sets that the kernels are built for.
#include "model/kernels/simd.h"
// Second group, so that the order stays.
#include "hwy/highway.h"

namespace aft {
namespace {

// Weight exponent of key t2 at query t, or -inf when t does not see t2.
double Exponent(const AftLayer& layer, const std::vector<float>& qkv, int64_t t, int64_t t2,
                int64_t c) {
  const int64_t h = layer.prefix_block;
  if (h > 0 && t2 / h < t / h - 1) return -std::numeric_limits<double>::infinity();
  double x = qkv[static_cast<size_t>((t2 * 3 + 1) * layer.hid + c)];
  if (t - t2 < layer.window) {
    const int64_t row = layer.band_rows > 1 ? t : 0;
    x += layer.band[static_cast<size_t>(row * layer.window + t - t2)];
  }
  return x;
}

}  // namespace

kernels::AftBias AftLayer::bias() const {
  if (window == 0) return {};
  std::vector<float> earliest_first = band;
  for (int64_t row = 0; row < band_rows; ++row) {
    const auto begin = earliest_first.begin() + row * window;
    std::reverse(begin, begin + window);
  }
  return {earliest_first.data(), band_rows, window, true};
}

int64_t AftLayer::slot_floats() const {
  return kernels::AftStateLayout{hid, window, prefix_block, ring}.Floats();
}

std::vector<double> AftReference(const AftLayer& layer, const std::vector<float>& qkv) {
  const int64_t hid = layer.hid;
  const int64_t tokens = static_cast<int64_t>(qkv.size()) / (3 * hid);
  std::vector<double> y(static_cast<size_t>(tokens * hid));
  std::vector<double> x(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < hid; ++c) {
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t t2 = 0; t2 <= t; ++t2) {
        x[static_cast<size_t>(t2)] = Exponent(layer, qkv, t, t2, c);
        max = std::max(max, x[static_cast<size_t>(t2)]);
      }
      double num = 0;
      double den = 0;
      for (int64_t t2 = 0; t2 <= t; ++t2) {
        const double e = std::exp(x[static_cast<size_t>(t2)] - max);
        num += e * qkv[static_cast<size_t>((t2 * 3 + 2) * hid + c)];
        den += e;
      }
      const double q = qkv[static_cast<size_t>(t * 3 * hid + c)];
      y[static_cast<size_t>(t * hid + c)] = num / den / (1 + std::exp(-q));
    }
  }
  return y;
}

AftRunner::AftRunner(const AftLayer& layer, int64_t slots)
    : layer_(layer),
      bias_(layer.bias()),
      params_{layer.hid, &bias_, layer.prefix_block, layer.ring},
      states_(static_cast<size_t>(slots * layer.slot_floats()),
              std::numeric_limits<float>::quiet_NaN()) {}

std::vector<std::vector<float>> AftRunner::Run(const std::vector<Chunk>& chunks) {
  const int64_t hid = layer_.hid;
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int64_t> offsets = {0};
  std::vector<float> qkv;
  for (const Chunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
    qkv.insert(qkv.end(), chunk.qkv.begin(), chunk.qkv.end());
    offsets.push_back(static_cast<int64_t>(qkv.size()) / (3 * hid));
  }
  const RaggedBatch batch = {static_cast<int64_t>(chunks.size()), slots.data(), positions.data(),
                             offsets.data()};
  std::vector<float> y(static_cast<size_t>(offsets.back() * hid),
                       std::numeric_limits<float>::quiet_NaN());
  // Scratch of its own per unit, as if each ran on another thread.
  std::vector<int64_t> units(
      static_cast<size_t>(kernels::AftUnits(params_, static_cast<int64_t>(chunks.size()))));
  for (size_t i = 0; i < units.size(); ++i) units[i] = static_cast<int64_t>(i);
  for (size_t i = units.size(); i > 1; --i) {
    shuffle_ ^= shuffle_ << 13;
    shuffle_ ^= shuffle_ >> 7;
    shuffle_ ^= shuffle_ << 17;
    std::swap(units[i - 1], units[shuffle_ % i]);
  }
  for (const int64_t unit : units) {
    std::vector<float> scratch(static_cast<size_t>(kernels::AftScratchFloats(params_)),
                               std::numeric_limits<float>::quiet_NaN());
    kernels::AftForward(params_, batch, qkv.data(), 3 * hid, states_.data(), layer_.slot_floats(),
                        y.data(), hid, scratch.data(), unit, unit + 1);
  }
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i < chunks.size(); ++i) {
    outputs.push_back(Tokens(y, hid, offsets[i], offsets[i + 1]));
  }
  return outputs;
}

std::vector<float> AftRunner::RunCut(const std::vector<float>& qkv,
                                     const std::vector<int64_t>& lengths) {
  const int64_t width = 3 * layer_.hid;
  const int64_t tokens = static_cast<int64_t>(qkv.size()) / width;
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    AFT_CHECK(end > t);
    const std::vector<float> part = Run({{0, t, Tokens(qkv, width, t, end)}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<float> Tokens(const std::vector<float>& matrix, int64_t width, int64_t begin,
                          int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

std::vector<int64_t> InstructionSets() { return hwy::SupportedAndGeneratedTargets(); }

std::string InstructionSetName(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

EveryInstructionSet::EveryInstructionSet() {
  hwy::SetSupportedTargetsForTest(GetParam());
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

EveryInstructionSet::~EveryInstructionSet() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace aft
