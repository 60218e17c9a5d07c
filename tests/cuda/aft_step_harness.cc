#include "tests/cuda/aft_step_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "gtest/gtest.h"
#include "model/network/config.h"
#include "tests/cuda/compare.h"
#include "tests/support/mixer_reference.h"

namespace aft::aft_step_test {
namespace {

using kernels::AftRing;
using kernels::cuda::In;
using kernels::cuda::Number;
using kernels::cuda::Out;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

uint16_t ToBf16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
}
float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16U); }

float FromFp16(uint16_t bits) {
  const int exponent = bits >> 10U & 0x1F;
  const auto mantissa = static_cast<float>(bits & 0x3FFU);
  float size = std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    size = std::ldexp(mantissa, -24);
  } else if (exponent < 31) {
    size = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits & 0x8000U) != 0 ? -size : size;
}

float Rounded(float x) { return FromBf16(ToBf16(x)); }

// Rows of `width` numbers `stride` apart in the device's memory.
struct Matrix {
  Matrix(Number number, int64_t row_count, int64_t row_width, bool padded)
      : type(number),
        rows(row_count),
        width(row_width),
        stride(padded ? (row_width + 15) / 8 * 8 : row_width),
        bytes(Size(rows * stride * kernels::cuda::NumberBytes(number))) {}

  void Set(const std::vector<float>& values) const {
    std::vector<uint8_t> all(bytes.size(), 0xFF);
    for (int64_t i = 0; i < rows * width; ++i) {
      const int64_t at = i / width * stride + i % width;
      const float value = values[Size(i)];
      const uint16_t half = ToBf16(value);
      if (type == Number::kFp32) {
        std::memcpy(&all[Size(4 * at)], &value, 4);
      } else {
        std::memcpy(&all[Size(2 * at)], &half, 2);
      }
    }
    const_cast<DeviceArray<uint8_t>&>(bytes).Set(all);
  }
  std::vector<float> Get() const {
    const std::vector<uint8_t> all = bytes.Get();
    std::vector<float> values(Size(rows * width));
    for (int64_t i = 0; i < rows * width; ++i) {
      const int64_t at = i / width * stride + i % width;
      uint16_t half = 0;
      if (type == Number::kFp32) {
        std::memcpy(&values[Size(i)], &all[Size(4 * at)], 4);
      } else {
        std::memcpy(&half, &all[Size(2 * at)], 2);
        values[Size(i)] = type == Number::kBf16 ? FromBf16(half) : FromFp16(half);
      }
    }
    return values;
  }

  Number type;
  int64_t rows;
  int64_t width;
  int64_t stride;
  DeviceArray<uint8_t> bytes;
};

std::vector<float> EarliestFirst(std::vector<float> band, int64_t window) {
  if (window == 0) return {0.0F};
  for (auto row = band.begin(); row != band.end(); row += window) std::reverse(row, row + window);
  return band;
}

}  // namespace

std::string Layer::Name() const {
  return "hid " + std::to_string(hid) + ", window " + std::to_string(window) +
         (ring == AftRing::kBf16 ? ", bf16 ring" : "") + ", H " + std::to_string(prefix_block) +
         ", bias rows " + std::to_string(bias_rows) + ", spread " + std::to_string(spread);
}

Runner::Runner(TestRandom& random, const Layer& layer, int64_t slots, Storage storage,
               int64_t lookahead_rows)
    : layer_(layer),
      slots_(slots),
      storage_(storage),
      band_(random.Normals(layer.bias_rows * layer.window, layer.spread)),
      table_(EarliestFirst(band_, layer.window)),
      cpu_bias_(layer.window == 0
                    ? kernels::AftBias()
                    : kernels::AftBias(table_.data(), layer.bias_rows, layer.window, true)),
      bias_(table_),
      slot_stride_((layer.layout().Floats() + 15) / 16 * 16),
      states_(Size(slots * slot_stride_)),
      cpu_states_(Size(slots * slot_stride_), std::bit_cast<float>(0xFFFFFFFFU)),
      lookahead_rows_(lookahead_rows) {
  model_.hid = layer.hid;
  model_.window = layer.window;
  model_.prefix_block = layer.prefix_block;
  model_.ring = layer.ring;
  model_.bias = layer.window > 0 ? bias_.get() : nullptr;
  model_.bias_rows = layer.bias_rows;
  model_.wide = cpu_bias_.wide;
  lookahead_stride_ = kernels::cuda::AftLookaheadFloats(model_, lookahead_rows);
  sums_ = std::make_unique<DeviceArray<float>>(Size(slots * lookahead_stride_));
}

std::vector<float> Runner::Tokens(TestRandom& random, const std::string& keys,
                                  int64_t tokens) const {
  std::vector<float> qkv = RandomQkv(random, keys, tokens, layer_.hid);
  if (storage_.in == Number::kBf16) std::transform(qkv.begin(), qkv.end(), qkv.begin(), Rounded);
  return qkv;
}

std::vector<double> Runner::Reference(const std::vector<float>& tokens) const {
  const int64_t hid = layer_.hid;
  std::vector<double> packed(tokens.begin(), tokens.end());
  if (layer_.ring == AftRing::kBf16 && layer_.window > 1) {
    for (size_t i = 0; i < packed.size(); ++i) {
      if (i % Size(3 * hid) >= Size(hid)) packed[i] = static_cast<double>(Rounded(tokens[i]));
    }
  }
  MixerConfig config;
  config.kind = MixerKind::kAftLocal;
  config.window = layer_.window;
  config.band_rows = layer_.bias_rows > 1 ? layer_.bias_rows : 0;
  config.length_policy = LengthPolicy::kClamp;
  config.prefix_block = layer_.prefix_block;
  return ReferenceMixer(config, hid, packed, {{"w.band", {band_.begin(), band_.end()}}});
}

std::vector<float> Runner::Step(const std::vector<Row>& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int32_t> ages;
  std::vector<float> qkv;
  for (const Row& row : rows) {
    slots.push_back(row.slot);
    positions.push_back(row.position);
    ages.push_back(row.age);
    qkv.insert(qkv.end(), row.qkv.begin(), row.qkv.end());
  }
  const Matrix in(storage_.in, count, 3 * layer_.hid, storage_.padded);
  const Matrix out(storage_.out, count, layer_.hid, storage_.padded);
  in.Set(qkv);
  const DeviceArray<int32_t> slot(slots);
  const DeviceArray<int64_t> position(positions);
  const DeviceArray<int32_t> age(ages);
  kernels::cuda::StepRows batch;
  batch.rows = count;
  batch.slot = slot.get();
  batch.position = position.get();
  batch.age = lookahead_rows_ > 0 ? age.get() : nullptr;
  EXPECT_EQ(kernels::cuda::AftStep(model_, batch, In{in.bytes.get(), in.type, in.stride},
                                   {states_.get(), slot_stride_},
                                   {lookahead_rows_, sums_->get(), lookahead_stride_},
                                   Out{out.bytes.get(), out.type, out.stride}, nullptr),
            0);
  return out.Get();
}

void Runner::StepOnCpu(const std::vector<Row>& rows) {
  const kernels::AftParams params = {layer_.hid, &cpu_bias_, layer_.prefix_block, layer_.ring};
  std::vector<float> scratch(Size(kernels::AftScratchFloats(params)));
  std::vector<float> y(Size(layer_.hid));
  for (const Row& row : rows) {
    const int64_t offset[] = {0, 1};
    const RaggedBatch batch = {1, &row.slot, &row.position, offset};
    kernels::AftForward(params, batch, row.qkv.data(), 3 * layer_.hid, cpu_states_.data(),
                        slot_stride_, y.data(), layer_.hid, scratch.data(), 0,
                        kernels::AftUnits(params, 1));
  }
}

std::vector<float> Runner::State(int32_t slot) const {
  const std::vector<float> all = states_.Get();
  const auto begin = all.begin() + slot * slot_stride_;
  return {begin, begin + layer_.layout().Floats()};
}

std::vector<float> Runner::Sums(int32_t slot) const {
  const std::vector<float> all = sums_->Get();
  const auto begin = all.begin() + slot * lookahead_stride_;
  return {begin, begin + lookahead_stride_};
}

void Runner::ExpectStatesOfCpu(const std::vector<int32_t>& slots) const {
  const kernels::AftStateLayout layout = layer_.layout();
  const std::vector<float> all = states_.Get();
  for (const int32_t slot : slots) {
    const float* const state = all.data() + slot * slot_stride_;
    const float* const cpu = cpu_states_.data() + slot * slot_stride_;
    for (int64_t p = 0; p < layout.prefixes(); ++p) {
      for (int64_t c = 0; c < layer_.hid; ++c) {
        const int64_t at = p * 3 * layer_.hid + c;
        const int64_t den = at + layer_.hid;
        const float scale = std::max(1.0F, cpu[den]);
        ASSERT_NEAR(state[at], cpu[at], 1e-5 * scale) << "slot " << slot << ", channel " << c;
        ASSERT_NEAR(state[den], cpu[den], 1e-5 * scale) << "slot " << slot << ", channel " << c;
        ASSERT_EQ(state[den + layer_.hid], cpu[den + layer_.hid]) << "slot " << slot;
      }
    }
    const int64_t ring = layout.KRing();
    const auto bytes = Size(layout.Floats() - ring) * sizeof(float);
    ASSERT_EQ(std::memcmp(state + ring, cpu + ring, bytes), 0) << "ring of slot " << slot;
  }
}

std::vector<float> RowOf(const std::vector<float>& matrix, int64_t width, int64_t t) {
  return {matrix.begin() + t * width, matrix.begin() + (t + 1) * width};
}

void ExpectNear(const std::vector<float>& y, const std::vector<double>& reference, Number type,
                double tolerance) {
  const Errors errors = CompareWith(reference, y);
  if (type == Number::kFp32) {
    EXPECT_LE(errors.worst, tolerance);
    EXPECT_LE(errors.rms, 1e-6);
  } else {
    EXPECT_LE(errors.relative, 1e-2);
    EXPECT_LE(errors.rms, 5e-3);
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace aft::aft_step_test
