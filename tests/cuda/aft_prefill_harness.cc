#include "tests/cuda/aft_prefill_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "gtest/gtest.h"
#include "model/network/config.h"
#include "tests/cuda/compare.h"
#include "tests/support/mixer_reference.h"

namespace aft::aft_prefill_test {
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
float Rounded(float x) { return FromBf16(ToBf16(x)); }

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

// Rows of `width` numbers `stride` apart in the device's memory; NaN between them.
class Matrix {
 public:
  Matrix(Number type, int64_t rows, int64_t width, bool padded)
      : type_(type),
        rows_(rows),
        width_(width),
        stride_(padded ? (width + 15) / 8 * 8 : width),
        bytes_(Size(rows * stride_ * kernels::cuda::NumberBytes(type))) {}

  void Set(const std::vector<float>& values) {
    std::vector<uint8_t> all(bytes_.size(), 0xFF);
    for (int64_t i = 0; i < rows_ * width_; ++i) {
      const int64_t at = i / width_ * stride_ + i % width_;
      const float value = values[Size(i)];
      const uint16_t half = ToBf16(value);
      if (type_ == Number::kFp32) {
        std::memcpy(&all[Size(4 * at)], &value, 4);
      } else {
        std::memcpy(&all[Size(2 * at)], &half, 2);
      }
    }
    bytes_.Set(all);
  }
  std::vector<float> Get() const {
    const std::vector<uint8_t> all = bytes_.Get();
    std::vector<float> values(Size(rows_ * width_));
    for (int64_t i = 0; i < rows_ * width_; ++i) {
      const int64_t at = i / width_ * stride_ + i % width_;
      uint16_t half = 0;
      if (type_ == Number::kFp32) {
        std::memcpy(&values[Size(i)], &all[Size(4 * at)], 4);
      } else {
        std::memcpy(&half, &all[Size(2 * at)], 2);
        values[Size(i)] = type_ == Number::kBf16 ? FromBf16(half) : FromFp16(half);
      }
    }
    return values;
  }
  In in() const { return {bytes_.get(), type_, stride_}; }
  Out out() const { return {bytes_.get(), type_, stride_}; }

 private:
  const Number type_;
  const int64_t rows_;
  const int64_t width_;
  const int64_t stride_;
  DeviceArray<uint8_t> bytes_;
};

// Ragged rows, one after the other.
struct Rows {
  template <typename Sequences, typename Get>
  Rows(const Sequences& sequences, int64_t width, Get get) {
    for (const auto& sequence : sequences) {
      const std::vector<float>& part = get(sequence);
      all.insert(all.end(), part.begin(), part.end());
      offsets.push_back(static_cast<int64_t>(all.size()) / width);
      longest = std::max(longest, offsets.back() - offsets[offsets.size() - 2]);
    }
  }
  int64_t tokens() const { return offsets.back(); }
  std::vector<std::vector<float>> Split(const std::vector<float>& matrix, int64_t width) const {
    std::vector<std::vector<float>> parts;
    for (size_t i = 1; i < offsets.size(); ++i) {
      parts.push_back(Part(matrix, width, offsets[i - 1], offsets[i]));
    }
    return parts;
  }

  std::vector<float> all;
  std::vector<int64_t> offsets = {0};
  int64_t longest = 0;
};

}  // namespace

std::string Layer::Name() const {
  return "hid " + std::to_string(hid) + ", window " + std::to_string(window) +
         (ring == AftRing::kBf16 ? ", bf16 ring" : "") + ", H " + std::to_string(prefix_block) +
         ", bias rows " + std::to_string(bias_rows) + ", spread " + std::to_string(spread) +
         (causal ? "" : ", bidirectional");
}

Runner::Runner(TestRandom& random, const Layer& layer, int64_t slots, Storage storage)
    : Runner(
          layer, slots, storage,
          random.Normals(std::max<int64_t>(layer.bias_rows * layer.columns(), 1), layer.spread)) {}

Runner::Runner(const Layer& layer, int64_t slots, Storage storage, std::vector<float> table)
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

std::vector<float> Runner::Input(TestRandom& random, const std::string& keys,
                                 int64_t tokens) const {
  std::vector<float> qkv = RandomQkv(random, keys, tokens, layer_.hid);
  if (storage_.in == Number::kBf16) std::transform(qkv.begin(), qkv.end(), qkv.begin(), Rounded);
  return qkv;
}

std::vector<double> Runner::Reference(const std::vector<float>& qkv,
                                      const std::vector<float>& mask) const {
  const int64_t hid = layer_.hid;
  std::vector<double> packed(qkv.begin(), qkv.end());
  if (layer_.ring == AftRing::kBf16 && layer_.window > 1) {
    for (size_t i = 0; i < packed.size(); ++i) {
      if (i % Size(3 * hid) >= Size(hid)) packed[i] = static_cast<double>(Rounded(qkv[i]));
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

std::vector<std::vector<float>> Runner::Prefill(const std::vector<Chunk>& chunks) {
  const int64_t hid = layer_.hid;
  const Rows rows(chunks, 3 * hid,
                  [](const Chunk& c) -> const std::vector<float>& { return c.qkv; });
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  for (const Chunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
  }
  Matrix in(storage_.in, rows.tokens(), 3 * hid, storage_.padded);
  const Matrix out(storage_.out, rows.tokens(), hid, storage_.padded);
  in.Set(rows.all);
  const DeviceArray<int32_t> slot(slots);
  const DeviceArray<int64_t> position(positions);
  const DeviceArray<int64_t> offset(rows.offsets);
  kernels::cuda::ChunkRows batch;
  batch.rows = static_cast<int64_t>(chunks.size());
  batch.slot = slot.get();
  batch.position = position.get();
  batch.offset = offset.get();
  batch.tokens = rows.tokens();
  batch.longest = rows.longest;
  const DeviceArray<float> workspace(
      Size(kernels::cuda::AftPrefillWorkspaceFloats(model_, batch.rows, batch.tokens)));
  EXPECT_EQ(kernels::cuda::AftPrefill(model_, batch, in.in(), {states_.get(), slot_stride_},
                                      out.out(), workspace.get(), nullptr),
            0);
  return rows.Split(out.Get(), hid);
}

std::vector<float> Runner::PrefillCut(const std::vector<float>& qkv,
                                      const std::vector<int64_t>& lengths) {
  const int64_t width = 3 * layer_.hid;
  const int64_t tokens = static_cast<int64_t>(qkv.size()) / width;
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    AFT_CHECK(end > t);
    const std::vector<float> part = Prefill({{0, t, Part(qkv, width, t, end)}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<std::vector<float>> Runner::OnCpu(const std::vector<Chunk>& chunks) {
  const int64_t hid = layer_.hid;
  std::vector<float> scratch(Size(kernels::AftScratchFloats(params())));
  std::vector<std::vector<float>> outputs;
  for (const Chunk& chunk : chunks) {
    const int64_t tokens = static_cast<int64_t>(chunk.qkv.size()) / (3 * hid);
    const int64_t offset[] = {0, tokens};
    const RaggedBatch batch = {1, &chunk.slot, &chunk.position, offset};
    outputs.emplace_back(Size(tokens * hid));
    kernels::AftForward(params(), batch, chunk.qkv.data(), 3 * hid, cpu_states_.data(),
                        slot_stride_, outputs.back().data(), hid, scratch.data(), 0,
                        kernels::AftUnits(params(), 1));
  }
  return outputs;
}

std::vector<std::vector<float>> Runner::Encode(const std::vector<std::vector<float>>& texts,
                                               const std::vector<std::vector<float>>& masks) const {
  const int64_t hid = layer_.hid;
  const auto same = [](const std::vector<float>& x) -> const std::vector<float>& { return x; };
  const Rows rows(texts, 3 * hid, same);
  const Rows all_masks(masks, 1, same);
  Matrix in(storage_.in, rows.tokens(), 3 * hid, storage_.padded);
  const Matrix out(storage_.out, rows.tokens(), hid, storage_.padded);
  in.Set(rows.all);
  const DeviceArray<int64_t> offset(rows.offsets);
  const DeviceArray<float> mask(all_masks.all);
  kernels::cuda::Texts batch;
  batch.sequences = static_cast<int64_t>(texts.size());
  batch.offset = offset.get();
  batch.mask = masks.empty() ? nullptr : mask.get();
  batch.tokens = rows.tokens();
  batch.longest = rows.longest;
  const DeviceArray<float> workspace(
      Size(kernels::cuda::AftEncodeWorkspaceFloats(model_, batch.sequences, batch.tokens)));
  EXPECT_EQ(kernels::cuda::AftEncode(model_, batch, in.in(), out.out(), workspace.get(), nullptr),
            0);
  return rows.Split(out.Get(), hid);
}

std::vector<float> Runner::State(int32_t slot) const {
  return Part(states_.Get(), slot_stride_, slot, slot + 1);
}

void Runner::ExpectStatesOfCpu(const std::vector<int32_t>& slots) const {
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

void Runner::ExpectNear(const std::vector<float>& y, const std::vector<float>& qkv,
                        const std::vector<float>& mask) const {
  const Errors errors = CompareWith(Reference(qkv, mask), y);
  float largest = 0.0F;
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (i % Size(3 * layer_.hid) >= Size(2 * layer_.hid)) {
      largest = std::max(largest, std::abs(qkv[i]));
    }
  }
  const bool fp32 = storage_.out == Number::kFp32;
  for (const float value : y) ASSERT_LE(std::abs(value), largest * (fp32 ? 1.00001F : 1.01F));
  if (fp32) {
    EXPECT_LE(errors.worst, 1e-5);
    // Not of results that are all small because values cancel; exponents of tens lose some bits.
    if (errors.worst > 1e-6) {
      EXPECT_LE(errors.rms, layer_.spread > 5 ? 3e-6 : 1e-6);
    }
  } else {
    EXPECT_LE(errors.relative, 1e-2);
    EXPECT_LE(errors.rms, 5e-3);
  }
}

std::vector<float> Part(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

}  // namespace aft::aft_prefill_test
