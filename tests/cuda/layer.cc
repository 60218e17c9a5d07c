#include "tests/cuda/layer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "tests/cuda/device_matrix.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Returns the largest sum |q_0 k_0| + |q_1 k_1| + ... of all scores q . k, with which the rounding
// error of a score grows. Queries come first in a row of `packed`.
double LargestScore(const Matrix& packed, const at::Tensor& table, int64_t hid) {
  const float* const keys = table.const_data_ptr<float>();
  const auto numbers = static_cast<size_t>(table.numel());
  double largest = 0;
  for (size_t q = 0; q < packed.size(); q += Size(2 * hid)) {
    for (size_t k = 0; k < numbers; k += Size(hid)) {
      double sum = 0;
      for (size_t c = 0; c < Size(hid); ++c) sum += std::abs(double{packed[q + c]} * keys[k + c]);
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

}  // namespace

const std::vector<Storage> kStorages = {{Number::kFp32, true},
                                        {Number::kFp32, false},
                                        {Number::kBf16, true},
                                        {Number::kBf16, false},
                                        {Number::kFp16, true}};

DeviceLayer::DeviceLayer(TestRandom& random, const MixerCase& shape, int32_t slots, Storage storage)
    : DeviceLayer(shape, TestMixer(shape, random, slots, CpuMixers()), slots, storage) {}

DeviceLayer::DeviceLayer(const MixerCase& shape, const std::map<std::string, Matrix>& tables)
    : DeviceLayer(shape, TestMixer(shape, tables, 1, CpuMixers()), 1, {}) {}

DeviceLayer::DeviceLayer(const MixerCase& shape, TestMixer cpu, int32_t slots, Storage storage)
    : shape_(shape),
      storage_(storage),
      cpu_(std::move(cpu)),
      gpu_(shape, cpu_.tables(), slots, storage) {}

std::string DeviceLayer::Name() const {
  const MixerConfig& config = shape_.config;
  return absl::StrCat(SpecOf(config.kind).name, ", hid ", hid(), ", heads ", config.heads,
                      ", window ", config.window, ", rows ", config.band_rows, ", H ",
                      config.prefix_block, ", block ", config.block_size,
                      config.global_token ? "" : ", no global token",
                      config.ring == Number::kBf16 ? ", bf16 ring" : "", ", spread ", shape_.spread,
                      config.causal ? "" : ", both ways", ", images of width ", shape_.grid_width,
                      ", ", storage_.Name());
}

Matrix DeviceLayer::Run(const Matrix& packed, const std::vector<int64_t>& lengths, int32_t slot) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / packed_width();
  Matrix y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t length = lengths[std::min(i++, lengths.size() - 1)];
    const int64_t end = std::min(t + std::max<int64_t>(length, 1), tokens);
    const std::vector<MixerChunk> chunk = {Chunk(packed, t, end, slot)};
    const Matrix part = (length == 0 ? Step(chunk) : Prefill(chunk))[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

Matrix DeviceLayer::Input(TestRandom& random, int64_t tokens, const std::string& keys) const {
  return cpu_.Unrounded(random, tokens, keys);
}

MixerChunk DeviceLayer::Chunk(const Matrix& packed, int64_t begin, int64_t end,
                              int32_t slot) const {
  return {slot, begin, Rows(packed, packed_width(), begin, end)};
}

void DeviceLayer::ExpectNear(const Matrix& y, const Matrix& packed, const Matrix& mask) const {
  ExpectNear(y, packed, Reference(packed, mask));
}

void DeviceLayer::ExpectNear(const Matrix& y, const Matrix& packed,
                             const std::vector<double>& expected) const {
  const int64_t width = packed_width();
  const int64_t values = value_column();
  float largest = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(packed.size()); ++i) {
    const int64_t column = i % width - values;
    const float value = std::abs(packed[Size(i)]);
    if (column >= 0 && column < hid() && value > largest) largest = value;
  }
  const bool fp32 = storage_.out == Number::kFp32;
  const float mean = fp32 ? tolerance::kMean : tolerance::kMeanBf16;
  if (shape_.config.kind != MixerKind::kWkv7) {  // its outputs are no means
    for (const float value : y) ASSERT_LE(std::abs(value), largest * (1 + mean)) << Name();
  }
  // Accept small absolute errors first: where values cancel, all results are small and the relative
  // error looks larger than it is.
  if (y.size() == expected.size() &&
      CompareWith(expected, y).worst <= tolerance::kFewOperations.each) {
    return;
  }
  Tolerance allowed = {tolerance::kFp32.each};
  if (shape_.config.kind == MixerKind::kWkv7) allowed = tolerance::kFp32Normed;
  if (shape_.config.kind == MixerKind::kLocation) {  // scores are not scaled
    allowed = tolerance::AttentionSplitTf32(
        LargestScore(packed, cpu_.tables().at("location.weight"), hid()));
  }
  if (SpecOf(shape_.config.kind).family == KernelFamily::kAft) {
    allowed = shape_.spread > 5 ? tolerance::kFp32Spread : tolerance::kFp32;
  } else if (shape_.spread > 100) {
    allowed = tolerance::kFp32Large;  // entries of some hundreds have larger ulps
  }
  if (!fp32) allowed = storage_.out == Number::kFp16 ? tolerance::kFp16 : tolerance::kBf16;
  EXPECT_TRUE(Close(y, expected, allowed)) << Name();
}

void DeviceLayer::ExpectRuns(TestRandom& random, int64_t tokens,
                             const std::vector<int64_t>& lengths, const std::string& keys) {
  SCOPED_TRACE(Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens");
  const Matrix packed = Input(random, tokens, keys);
  ExpectNear(Run(packed, lengths), packed);
  cpu_.Run({Chunk(packed, 0, tokens)});
  ExpectStateOfCpu(0);
}

void DeviceLayer::ExpectEncodes(TestRandom& random, int64_t tokens, const std::string& keys,
                                const Matrix& mask) {
  SCOPED_TRACE(Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens" +
               (mask.empty() ? "" : ", masked"));
  const Matrix packed = Input(random, tokens, keys);
  const std::vector<Matrix> masks(mask.empty() ? 0 : 1, mask);
  ExpectNear(Encode({packed}, masks)[0], packed, mask);
}

void DeviceLayer::ExpectStateOfCpu(int32_t slot) const {
  const Matrix state = gpu_.SlotContents(slot);
  const Matrix cpu = cpu_.SlotContents(slot);
  for (const StateSection& section : cpu_.state_spec().sections) {
    // Only these sections are computed. All others are copies.
    const absl::string_view name = section.name;
    const bool sums = name == "prefix" || name == "sums";
    const bool lengths = shape_.config.kind == MixerKind::kCosine && name == "keys";
    for (size_t i = Size(section.offset); i < Size(section.offset + section.floats); ++i) {
      // Equal bits also cover NaN, which the places of later tokens still hold.
      if (std::memcmp(&state[i], &cpu[i], sizeof(float)) == 0) continue;
      ASSERT_TRUE(sums || lengths) << Name() << ": number " << i << " of slot " << slot << ", in "
                                   << section.name << ", is " << state[i] << ", not " << cpu[i];
      ASSERT_NEAR(state[i], cpu[i], tolerance::kFp32.each * std::max(1.0, std::abs(double{cpu[i]})))
          << Name() << ": number " << i << " of slot " << slot;
    }
  }
}

const std::vector<MixerKind> kAttentions = {MixerKind::kDotProduct, MixerKind::kCosine,
                                            MixerKind::kAdditive, MixerKind::kLocation,
                                            MixerKind::kBlockLocal};

MixerCase Aft(int64_t hid, MixerConfig config, double spread) {
  config.length_policy = LengthPolicy::kClamp;
  return {"", config, hid, spread};
}

MixerCase Conv(int64_t hid, int64_t heads, int64_t taps, double spread) {
  return {"", {.kind = MixerKind::kAftConv, .window = taps, .heads = heads}, hid, spread};
}

MixerCase Attention(MixerKind kind, int64_t heads, int64_t width, int64_t tokens) {
  MixerConfig config = {.kind = kind, .heads = heads};
  if (kind == MixerKind::kLocation) {
    config.heads = 1;
    config.band_rows = tokens;
  }
  if (kind == MixerKind::kAdditive) config.score_width = 5;
  if (kind == MixerKind::kBlockLocal) config.block_size = 16;
  return {.name = {}, .config = config, .hid = config.heads * width, .tokens = tokens};
}

MixerCase Image(int64_t hid, int64_t heads, int64_t taps, int64_t width, double spread) {
  MixerCase shape = BothWays(Conv(hid, heads, taps, spread));
  shape.config.grid = true;
  shape.grid_width = width;
  return shape;
}

MixerCase Blocks(int64_t heads, int64_t width, int64_t block_size, bool global_token) {
  MixerCase shape = Attention(MixerKind::kBlockLocal, heads, width);
  shape.config.block_size = block_size;
  shape.config.global_token = global_token;
  return shape;
}

MixerCase Wkv4(int64_t hid) { return {"", {.kind = MixerKind::kWkv4}, hid}; }

MixerCase Wkv7(int64_t heads, int64_t width) {
  return {"", {.kind = MixerKind::kWkv7, .heads = heads}, heads * width};
}

MixerCase BothWays(MixerCase shape) {
  shape.config.causal = false;
  return shape;
}
MixerCase WithBf16Ring(MixerCase shape) {
  shape.config.ring = Number::kBf16;
  return shape;
}

Matrix Rows(const Matrix& matrix, int64_t width, int64_t begin, int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

}  // namespace aft
