#include "tests/property/mixer_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "tests/support/mixer_of.h"
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

// A case, with its mixer in the form that MixerOf (tests/support/mixer_of.h) reads.
struct Form {
  const char* name;
  const char* mixer;
  int64_t hid = 24;
  double spread = 1;
};
void Append(const std::vector<Form>& forms, std::vector<MixerCase>* cases) {
  for (const Form& form : forms) {
    cases->push_back({form.name, MixerOf(form.mixer), form.hid, form.spread});
  }
}

// Every kind, and the forms of kinds that exist both causal and bidirectional.
std::vector<MixerCase> SharedCases() {
  static_assert(kMixerTokens == 64, "as many rows have the tables below");
  std::vector<MixerCase> cases;
  for (const KindSpec& kind : AllKinds()) {
    if (kind.token_shift) continue;  // RecurrentCases
    cases.push_back({kind.name, ExampleMixer(kind.kind, kMixerTokens)});
  }
  Append({{"local_0", "aft_local window=0"},
          {"local_1", "aft_local window=1"},
          {"local_8", "aft_local window=8"},
          {"local_33", "aft_local window=33"},
          {"local_37_channels", "aft_local window=8", 37},
          {"local_wide", "aft_local window=8", 24, 20},
          {"local_rows", "aft_local window=8 band_rows=64"},
          {"local_clamp", "aft_local window=8 band_rows=30 length_policy=clamp"},
          {"local_zero", "aft_local window=8 band_rows=30 length_policy=zero"},
          {"local_wider_than_rows", "aft_local window=40 band_rows=30 length_policy=clamp"},
          {"local_wider_than_rows_zero", "aft_local window=40 band_rows=30 length_policy=zero"},
          {"local_of_full", "aft_local window=8 band_rows=64 bias=full"},
          {"local_of_full_clamp", "aft_local window=40 band_rows=30 bias=full length_policy=clamp"},
          {"local_of_factors", "aft_local window=8 band_rows=64 bias=factors bias_rank=3"},
          {"full_clamp", "aft_full band_rows=30 bias=full length_policy=clamp"},
          {"full_zero", "aft_full band_rows=30 bias=full length_policy=zero"},
          {"full_of_factors", "aft_full band_rows=64 bias=factors bias_rank=3"},
          {"conv_one_head", "aft_conv heads=1 window=7"},
          {"conv_head_per_channel", "aft_conv heads=24 window=5"},
          {"conv_wide", "aft_conv heads=4 window=5", 24, 30},
          {"conv_reparameterized", "aft_conv heads=4 window=5 reparameterized=true"},
          {"block_local_without_global", "block_local heads=2 block_size=8 global_token=false"}},
         &cases);
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
  Append({{"simple_blocks", "aft_simple prefix_block=16"},
          {"local_blocks", "aft_local window=8 prefix_block=16"},
          {"local_rows_blocks", "aft_local window=8 band_rows=64 prefix_block=9"},
          {"local_wide_blocks", "aft_local window=31 prefix_block=31", 24, 20},
          {"local_bf16", "aft_local window=8 ring=bf16", 23},
          {"full_bf16", "aft_full band_rows=64 bias=full ring=bf16", 23},
          {"conv_bf16", "aft_conv heads=4 window=5 ring=bf16"},
          {"block_local_full_decode", "block_local heads=2 block_size=8 full_decode=true"}},
         &cases);
  return cases;
}

std::vector<MixerCase> RecurrentCases() {
  std::vector<MixerCase> cases;
  for (const KindSpec& kind : AllKinds()) {
    if (kind.token_shift) cases.push_back({kind.name, ExampleMixer(kind.kind, kMixerTokens)});
  }
  Append({{"wkv4_odd", "wkv4", 37}}, &cases);
  for (const auto& [heads, hid] : {std::pair(2, int64_t{128}), {3, 33}, {1, 80}}) {
    cases.push_back({absl::StrCat("wkv7_", heads, "_", hid), cases[1].config, hid});
    cases.back().config.heads = heads;
  }
  cases.push_back(cases[1]);
  cases.back().name += "_initial_state";
  cases.back().config.initial_state = true;
  return cases;
}

std::vector<MixerCase> BidirectionalCases() {
  std::vector<MixerCase> cases = SharedCases();
  Append({{"conv_grid", "aft_conv heads=3 window=3 grid=true"}}, &cases);
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
                     const std::map<std::string, std::vector<float>>& tables, int32_t slots,
                     const MixerDevice& device)
    : case_(mixer_case) {
  for (const TensorSpec& spec : ExpectedMixerTables(case_.config, case_.hid)) {
    tables_[spec.name] = ToTensor(tables.at(spec.name), spec.shape);
  }
  mixer_ = device.make(case_, tables_, slots);
}

int64_t TestMixer::width() const { return PackedWidth(case_.config, case_.hid); }

int64_t TestMixer::key_column() const {
  return SpecOf(case_.config.kind).packed(case_.config, hid())[0].columns;
}

int64_t TestMixer::value_column() const {
  int64_t column = 0;
  for (const PackedPart& part : SpecOf(case_.config.kind).packed(case_.config, hid())) {
    if (absl::string_view(part.name) == "v") break;
    column += part.columns;
  }
  return column;
}

std::vector<float> TestMixer::Unrounded(TestRandom& random, int64_t tokens,
                                        const std::string& keys) const {
  std::vector<float> packed = random.Normals(tokens * width());
  if (!IsAft(case_.config)) return packed;
  const int64_t columns = value_column() - key_column();
  const std::vector<float> qkv = RandomQkv(random, keys, tokens, columns);
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(qkv.begin() + (3 * t + 1) * columns, columns,
                packed.begin() + t * width() + key_column());
  }
  return packed;
}

std::vector<float> TestMixer::Packed(TestRandom& random, int64_t tokens,
                                     const std::string& keys) const {
  std::vector<float> packed = Unrounded(random, tokens, keys);
  if (case_.config.ring == Number::kBf16) {
    // Adding 0 turns -0 into 0, because a sum may lose the sign of -0.
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
  const MixerConfig& config = case_.config;
  std::vector<double> stored(packed.begin(), packed.end());
  const bool rounds = config.ring == Number::kBf16 && config.causal &&
                      (config.kind == MixerKind::kAftConv || config.window > 1);
  const int64_t columns = width();
  const int64_t keys = key_column();
  for (int64_t i = 0; rounds && i < static_cast<int64_t>(stored.size()); ++i) {
    const auto at = static_cast<size_t>(i);
    if (i % columns >= keys) stored[at] = double{RoundToBf16(packed[at])};
  }
  return ReferenceMixer(config, case_.hid, stored, tables, {mask.begin(), mask.end()},
                        config.grid ? case_.grid_width : 0);
}

}  // namespace aft
