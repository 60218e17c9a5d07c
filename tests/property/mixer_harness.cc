#include "tests/property/mixer_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/ops/empty.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "tests/support/close.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

at::Tensor ToTensor(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  AFT_CHECK(tensor.numel() == static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

std::vector<float> ToVector(const at::Tensor& tensor) {
  const at::Tensor x = tensor.contiguous();
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel()};
}

MixerConfig Kind(MixerKind kind) {
  MixerConfig config;
  config.kind = kind;
  return config;
}

MixerConfig Local(int64_t window, int64_t band_rows = 0, BiasForm bias = BiasForm::kBand) {
  MixerConfig config = Kind(MixerKind::kAftLocal);
  config.window = window;
  config.band_rows = band_rows;
  config.bias = bias;
  config.bias_rank = bias == BiasForm::kFactors ? 3 : 0;
  return config;
}

MixerConfig Full(int64_t rows, BiasForm bias) {
  MixerConfig config = Local(0, rows, bias);
  config.kind = MixerKind::kAftFull;
  return config;
}

MixerConfig Conv(int64_t heads, int64_t taps) {
  MixerConfig config = Kind(MixerKind::kAftConv);
  config.heads = heads;
  config.window = taps;
  return config;
}

MixerConfig With(MixerConfig config, LengthPolicy policy) {
  config.length_policy = policy;
  return config;
}
MixerConfig Bf16(MixerConfig config) {
  config.ring = Number::kBf16;
  return config;
}
MixerConfig Blocks(MixerConfig config, int64_t prefix_block) {
  config.prefix_block = prefix_block;
  return config;
}

// Every kind, and forms of kinds that exist both ways.
std::vector<MixerCase> SharedCases() {
  constexpr int64_t kT = kMixerTokens;
  std::vector<MixerCase> cases;
  for (const KindSpec& kind : AllKinds()) cases.push_back({kind.name, ExampleMixer(kind.kind, kT)});
  MixerConfig reparameterized = Conv(4, 5);
  reparameterized.reparameterized = true;
  MixerConfig without_global = ExampleMixer(MixerKind::kBlockLocal, kT);
  without_global.global_token = false;
  const std::vector<MixerCase> forms = {
      {"local_0", Local(0)},
      {"local_1", Local(1)},
      {"local_8", Local(8)},
      {"local_33", Local(33)},
      {"local_37_channels", Local(8), 37},
      {"local_wide", Local(8), 24, 20},
      {"local_rows", Local(8, kT)},
      {"local_clamp", With(Local(8, 30), LengthPolicy::kClamp)},
      {"local_zero", With(Local(8, 30), LengthPolicy::kZero)},
      {"local_wider_than_rows", With(Local(40, 30), LengthPolicy::kClamp)},
      {"local_of_full", Local(8, kT, BiasForm::kFull)},
      {"local_of_full_clamp", With(Local(40, 30, BiasForm::kFull), LengthPolicy::kClamp)},
      {"local_of_factors", Local(8, kT, BiasForm::kFactors)},
      {"full_clamp", With(Full(30, BiasForm::kFull), LengthPolicy::kClamp)},
      {"full_zero", With(Full(30, BiasForm::kFull), LengthPolicy::kZero)},
      {"full_of_factors", Full(kT, BiasForm::kFactors)},
      {"conv_one_head", Conv(1, 7)},
      {"conv_head_per_channel", Conv(24, 5)},
      {"conv_wide", Conv(4, 5), 24, 30},
      {"conv_reparameterized", reparameterized},
      {"block_local_without_global", without_global},
  };
  cases.insert(cases.end(), forms.begin(), forms.end());
  return cases;
}

}  // namespace

bool IsAft(const MixerConfig& config) {
  return SpecOf(config.kind).family != KernelFamily::kAttention;
}

float RoundToBf16(float x) {
  // To 8 significant bits, ties to even.
  int exponent = 0;
  const float mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

std::vector<MixerCase> CausalCases() {
  std::vector<MixerCase> cases = SharedCases();
  cases.push_back({"simple_blocks", Blocks(Kind(MixerKind::kAftSimple), 16)});
  cases.push_back({"local_blocks", Blocks(Local(8), 16)});
  cases.push_back({"local_rows_blocks", Blocks(Local(8, kMixerTokens), 9)});
  cases.push_back({"local_wide_blocks", Blocks(Local(31), 31), 24, 20});
  cases.push_back({"local_bf16", Bf16(Local(8)), 23});
  cases.push_back({"full_bf16", Bf16(Full(kMixerTokens, BiasForm::kFull)), 23});
  cases.push_back({"conv_bf16", Bf16(Conv(4, 5))});
  MixerConfig full_decode = ExampleMixer(MixerKind::kBlockLocal, kMixerTokens);
  full_decode.full_decode = true;
  cases.push_back({"block_local_full_decode", full_decode});
  return cases;
}

std::vector<MixerCase> BidirectionalCases() {
  std::vector<MixerCase> cases = SharedCases();
  MixerConfig grid = Conv(3, 3);
  grid.grid = true;
  cases.push_back({"conv_grid", grid});
  for (MixerCase& mixer_case : cases) mixer_case.config.causal = false;
  return cases;
}

MixerRows::MixerRows(const std::vector<MixerChunk>& chunks, int64_t width) {
  for (const MixerChunk& chunk : chunks) Add(chunk, width);
}

MixerRows::MixerRows(const std::vector<std::vector<float>>& sequences, int64_t width) {
  for (const std::vector<float>& sequence : sequences) Add({0, 0, sequence}, width);
}

void MixerRows::Add(const MixerChunk& chunk, int64_t width) {
  slots.push_back(chunk.slot);
  positions.push_back(chunk.position);
  generated.push_back(chunk.generated ? 1 : 0);
  packed.insert(packed.end(), chunk.packed.begin(), chunk.packed.end());
  offsets.push_back(static_cast<int64_t>(packed.size()) / width);
  longest = std::max(longest, offsets.back() - offsets[offsets.size() - 2]);
}

std::vector<std::vector<float>> MixerRows::Parts(const std::vector<float>& matrix,
                                                 int64_t columns) const {
  std::vector<std::vector<float>> parts;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    parts.push_back(Tokens(matrix, columns, offsets[i], offsets[i + 1]));
  }
  return parts;
}

TestMixer::TestMixer(const MixerCase& mixer_case, TestRandom& random, int32_t slots,
                     const MixerDevice& device)
    : case_(mixer_case) {
  for (const TensorSpec& spec : ExpectedMixerTables(case_.config, case_.hid)) {
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    tables_[spec.name] = ToTensor(random.Normals(count, case_.spread), spec.shape);
  }
  mixer_ = device.make(case_, tables_, slots);
}

TestMixer::TestMixer(const MixerCase& mixer_case, MixerTables tables)
    : case_(mixer_case),
      tables_(std::move(tables)),
      mixer_(TestedMixers().make(case_, tables_, 1)) {}

TestMixer::TestMixer(const MixerCase& mixer_case,
                     const std::map<std::string, std::vector<float>>& tables)
    : case_(mixer_case) {
  for (const TensorSpec& spec : ExpectedMixerTables(case_.config, case_.hid)) {
    tables_[spec.name] = ToTensor(tables.at(spec.name), spec.shape);
  }
  mixer_ = TestedMixers().make(case_, tables_, 1);
}

int64_t TestMixer::width() const { return PackedWidth(case_.config, case_.hid); }

std::vector<float> TestMixer::Packed(TestRandom& random, int64_t tokens,
                                     const std::string& keys) const {
  const MixerConfig& config = case_.config;
  std::vector<float> packed = random.Normals(tokens * width());
  if (IsAft(config)) {
    const int64_t columns = SpecOf(config.kind).packed(config, hid())[1].columns;  // of the keys
    const std::vector<float> qkv = RandomQkv(random, keys, tokens, columns);
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(qkv.begin() + (3 * t + 1) * columns, columns,
                  packed.begin() + t * width() + hid());
    }
  }
  if (config.ring == Number::kBf16) {
    // + 0: no -0, whose sign a sum may lose.
    for (float& x : packed) x = RoundToBf16(x) + 0.0F;
  }
  return packed;
}

std::vector<float> TestMixer::RunCut(const std::vector<float>& packed,
                                     const std::vector<int64_t>& lengths, int32_t slot,
                                     int64_t position, int64_t generated) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / width();
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    const bool is_generated = position + t >= generated;
    if (!is_generated) end = std::min(end, generated - position);
    AFT_CHECK(end > t);
    const std::vector<float> part =
        Run({{slot, position + t, Tokens(packed, width(), t, end), is_generated}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<double> TestMixer::Reference(const std::vector<float>& packed,
                                         const std::vector<float>& mask) const {
  ReferenceTables tables;
  for (const auto& [name, tensor] : tables_) {
    const std::vector<float> values = ToVector(tensor);
    tables[name] = {values.begin(), values.end()};
  }
  return ReferenceMixer(case_.config, case_.hid, {packed.begin(), packed.end()}, tables,
                        {mask.begin(), mask.end()}, case_.config.grid ? case_.grid_width : 0);
}

void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference,
                 double allowed) {
  ASSERT_TRUE(Close(y, reference, {allowed}));
}

}  // namespace aft
