// Compares every differentiable form with the formulas, and its gradients with finite differences.

#include "model/train/forms/train_form.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

constexpr int64_t kHid = 6;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

at::Tensor RandomDoubles(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

MixerTables RandomTables(const MixerConfig& config, int64_t hid, uint64_t seed) {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(config, hid)) {
    tables[spec.name] = RandomDoubles(spec.shape, ++seed);
  }
  return tables;
}

std::vector<double> ToVector(const at::Tensor& x) {
  const at::Tensor values = x.detach().to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// Applies ReferenceMixer to every sequence: packed [B, T, P], mask [B, T] or undefined -> [B, T,
// hid], double.
at::Tensor TensorReference(const MixerConfig& config, int64_t hid, const at::Tensor& packed,
                           const MixerTables& tables, const at::Tensor& mask = {},
                           int64_t grid_width = 0) {
  ReferenceTables doubles;
  for (const auto& [name, table] : tables) doubles[name] = ToVector(table);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < packed.size(0); ++b) {
    const std::vector<double> y =
        ReferenceMixer(config, hid, ToVector(packed[b]), doubles,
                       mask.defined() ? ToVector(mask[b]) : std::vector<double>(), grid_width);
    rows.push_back(at::tensor(y, at::kDouble).view({packed.size(1), hid}));
  }
  return at::stack(rows);
}

struct Case {
  int64_t tokens;
  std::string mixer;
  int64_t grid_width = 0;
  MixerConfig config = MixerOf(mixer);
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {1, "aft_simple"},
      {12, "aft_simple"},
      {150, "aft_simple"},
      {14, "aft_simple prefix_block=4"},
      {24, "aft_simple prefix_block=8"},
      {12, "aft_simple causal=false"},
      {12, "aft_local window=1"},
      {24, "aft_local window=4"},
      {9, "aft_local window=20"},
      {150, "aft_local window=5"},
      {150, "aft_local window=70"},
      {24, "aft_local window=4 prefix_block=4"},
      {24, "aft_local window=3 prefix_block=8"},
      {12, "aft_local window=4 band_rows=16"},
      {150, "aft_local window=4 band_rows=150"},
      {13, "aft_local window=4 band_rows=7 length_policy=clamp"},
      {13, "aft_local window=4 band_rows=7 length_policy=zero"},
      {13, "aft_local window=4 band_rows=16 prefix_block=4"},
      {13, "aft_local window=4 band_rows=7 prefix_block=5 length_policy=clamp"},
      {12, "aft_local window=4 band_rows=12 bias=full"},
      {6, "aft_local window=12 band_rows=8 bias=full"},
      {13, "aft_local window=4 band_rows=7 bias=full length_policy=clamp"},
      {12, "aft_local window=4 band_rows=16 bias=factors bias_rank=2"},
      {12, "aft_local window=4 causal=false"},
      {12, "aft_local window=4 causal=false band_rows=16"},
      {12, "aft_local window=4 causal=false band_rows=5 length_policy=clamp"},
      {12, "aft_local window=4 causal=false band_rows=16 bias=full"},
      {12, "aft_local window=4 causal=false band_rows=7 bias=full length_policy=clamp"},
      {12,
       "aft_local window=4 causal=false band_rows=7 bias=factors bias_rank=2 length_policy=zero"},
      {1, "aft_full bias=full band_rows=4"},
      {12, "aft_full bias=full band_rows=12"},
      {9, "aft_full bias=full band_rows=12"},
      {12, "aft_full bias=full band_rows=7 length_policy=clamp"},
      {12, "aft_full bias=full band_rows=7 length_policy=zero"},
      {12, "aft_full bias=factors bias_rank=2 band_rows=14"},
      {12, "aft_full bias=full band_rows=12 causal=false"},
      {17, "aft_full bias=full band_rows=7 causal=false length_policy=clamp"},
      {12, "aft_full bias=factors bias_rank=2 band_rows=7 causal=false length_policy=zero"},
      {1, "wkv4"},
      {37, "wkv4"},
      {37, "wkv7 heads=2 decay_rank=1 rate_rank=1 value_rank=1 gate_rank=1"},
      {16, "wkv7 heads=1 decay_rank=1 rate_rank=1 value_rank=1 gate_rank=1"},
      {12, "aft_conv window=3 heads=2"},
      {7, "aft_conv window=1 heads=6"},
      {5, "aft_conv window=9 heads=3"},
      {150, "aft_conv window=4 heads=2"},
      {12, "aft_conv window=4 heads=2 reparameterized=true"},
      {12, "aft_conv window=4 heads=2 reparameterized=true unbiased_std=false std_eps=1e-2"},
      {12, "aft_conv window=5 heads=2 causal=false"},
      {12, "aft_conv window=3 heads=2 causal=false grid=true", 4},
      {15, "aft_conv window=5 heads=2 causal=false grid=true", 3},
      {12, "aft_conv window=3 heads=2 causal=false grid=true reparameterized=true std_eps=1e-3", 3},
      {1, "block_local block_size=4 heads=2"},
      {8, "block_local block_size=4 heads=2"},
      {15, "block_local block_size=4 heads=2"},
      {15, "block_local block_size=4 heads=2 global_token=false"},
      {6, "block_local block_size=1 heads=2"},
      {1, "block_local block_size=4 heads=2 causal=false"},
      {15, "block_local block_size=4 heads=2 causal=false"},
      {16, "block_local block_size=4 heads=2 causal=false"},
      {15, "block_local block_size=4 heads=2 causal=false global_token=false"},
  };
  for (const KindSpec& kind : AllKinds()) {
    for (const bool causal : {true, false}) {
      if (!causal && kind.token_shift) continue;
      const std::string name = absl::StrCat(kind.name, causal ? " example" : " both ways");
      cases.push_back({12, name, 0, ExampleMixer(kind.kind, 12, causal)});
    }
  }
  return cases;
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.tokens << " tokens, " << c.mixer; }

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name = absl::StrCat(info.param.mixer, "_", info.param.tokens);
  for (char& c : name) c = absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

// Masks of two sequences: no mask; padding at the beginning of one sequence, also of its token 0,
// and at the end of the other one; soft scores.
std::vector<at::Tensor> Masks(int64_t tokens, const MixerConfig& config) {
  if (SpecOf(config.kind).token_shift) return {at::Tensor()};  // these kinds have no masks
  at::Tensor padded = at::zeros({2, tokens}, at::kDouble);
  padded[0].slice(0, 0, (tokens + 2) / 3).fill_(kHidden);
  padded[1].slice(0, tokens - tokens / 3, tokens).fill_(-1e38);
  at::Tensor soft = RandomDoubles({2, tokens}, 7);
  soft[1].fill_(kHidden);
  return {at::Tensor(), padded, soft};
}

class TrainFormTest : public testing::TestWithParam<Case> {
 protected:
  TrainFormTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  const MixerConfig& config() const { return GetParam().config; }
  int64_t tokens() const { return GetParam().tokens; }

  at::Tensor Form(const at::Tensor& packed, const MixerTables& tables, const at::Tensor& mask) {
    return TrainForm(config(), packed, tables, {.mask = mask, .grid_width = GetParam().grid_width});
  }
  at::Tensor Expected(const at::Tensor& packed, const at::Tensor& mask) {
    return TensorReference(config(), kHid, packed, tables_, mask, GetParam().grid_width);
  }

  const at::Tensor packed_ = RandomDoubles({2, tokens(), PackedWidth(config(), kHid)}, 1) * 2;
  const MixerTables tables_ = RandomTables(config(), kHid, 2);
};

MixerTables To(const MixerTables& tables, at::ScalarType type) {
  MixerTables result;
  for (const auto& [name, table] : tables) result[name] = table.to(type);
  return result;
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST_P(TrainFormTest, EqualsTheFormulaUnderEveryMask) {
  for (const at::Tensor& mask : Masks(tokens(), config())) {
    const at::Tensor expected = Expected(packed_, mask);
    EXPECT_LT(LargestDifference(Form(packed_, tables_, mask), expected),
              tolerance::kDifferentiableFp64);
    const at::Tensor single = Form(packed_.to(at::kFloat), To(tables_, at::kFloat),
                                   mask.defined() ? mask.to(at::kFloat) : at::Tensor());
    EXPECT_EQ(single.scalar_type(), at::kFloat);
    // wkv7 is no mean of its values: its outputs are as large as its gates.
    const double scale = std::max(expected.abs().max().item<double>(), 1.0);
    EXPECT_LT(LargestDifference(single, expected), scale * tolerance::kDifferentiable.each);
  }
}

TEST_P(TrainFormTest, GradientsEqualFiniteDifferences) {
  const at::Tensor weights = RandomDoubles({2, tokens(), kHid}, 3);
  for (const at::Tensor& mask : Masks(tokens(), config())) {
    std::map<std::string, at::Tensor> leaves = {{"packed", packed_.clone()}};
    for (const auto& [name, table] : tables_) leaves[name] = table.clone();
    for (auto& [name, leaf] : leaves) leaf.set_requires_grad(true);
    const auto loss = [&](const std::string& moved, const at::Tensor& value) {
      MixerTables tables;
      for (const auto& [name, table] : tables_) tables[name] = name == moved ? value : leaves[name];
      return (Form(moved == "packed" ? value : leaves["packed"], tables, mask) * weights).sum();
    };
    loss("packed", leaves["packed"]).backward();
    for (const auto& [name, leaf] : leaves) {
      ASSERT_TRUE(leaf.grad().isfinite().all().item<bool>()) << name;
      const at::Tensor grad = leaf.grad().contiguous();
      const int64_t count = leaf.numel();
      for (int64_t i = 0; i < count; i += 1 + count / 25) {
        constexpr double kStep = 1e-5;
        double difference = 0;
        for (const double sign : {1.0, -1.0}) {
          const at::Tensor value = leaf.detach().clone();
          value.mutable_data_ptr<double>()[i] += sign * kStep;
          difference += sign * loss(name, value).item<double>() / (2 * kStep);
        }
        EXPECT_NEAR(grad.const_data_ptr<double>()[i], difference,
                    tolerance::kFiniteDifference * std::max(std::abs(difference), 1.0))
            << name << " element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, TrainFormTest, testing::ValuesIn(Cases()), CaseName);

// Makes the keys of some channels rise and fall by hundreds, and rounds them to fp32. One
// exponential relative to a shared maximum cannot represent such keys.
at::Tensor SteepKeys(const at::Tensor& packed, int64_t key_columns) {
  at::Tensor steep = packed.clone();
  at::Tensor keys = steep.slice(2, kHid, kHid + key_columns);
  for (int64_t t = 0; t < packed.size(1); ++t) {
    keys.select(2, 1).select(1, t) += 40.0 * static_cast<double>(t);
    if (key_columns < 4) continue;
    keys.select(2, 2).select(1, t) += t % 5 == 4 ? 300.0 : 0.0;
    keys.select(2, 3).select(1, t) -= 90.0 * static_cast<double>(t);
  }
  return steep.to(at::kFloat);
}

std::vector<Case> CasesWhere(const std::function<bool(const Case&)>& wanted) {
  std::vector<Case> cases = Cases();
  cases.erase(std::remove_if(cases.begin(), cases.end(), std::not_fn(wanted)), cases.end());
  return cases;
}

// Tests keys and biases of several hundreds.
class ExtremeTest : public TrainFormTest {};

TEST_P(ExtremeTest, KeysAndBiasesOfAnySizeStayExact) {
  const bool conv = config().kind == MixerKind::kAftConv;
  const at::Tensor packed = SteepKeys(packed_, conv ? config().heads : kHid);
  MixerTables steep = tables_;
  for (auto& [name, table] : steep) {
    if (name != "decay") table = table * 150;  // wkv4's exp(decay) of such tables is infinite
  }
  for (const MixerTables& tables : {tables_, steep}) {
    const at::Tensor expected =
        TensorReference(config(), kHid, packed, To(tables, at::kFloat), {}, GetParam().grid_width);
    at::Tensor leaf = packed.clone().set_requires_grad(true);
    MixerTables leaves = To(tables, at::kFloat);
    for (auto& [name, table] : leaves) table.set_requires_grad(true);
    const at::Tensor y = Form(leaf, leaves, {});
    EXPECT_LT(LargestDifference(y, expected), tolerance::kKeysRounded.each)
        << "scores of 1e4 are rounded to 5e-4";
    y.sum().backward();
    EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>());
    for (const auto& [name, table] : leaves) {
      EXPECT_TRUE(table.grad().isfinite().all().item<bool>()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, ExtremeTest, testing::ValuesIn(CasesWhere([](const Case& c) {
                           return SpecOf(c.config.kind).family != KernelFamily::kAttention &&
                                  c.config.kind != MixerKind::kWkv7;  // it has no exponentials
                         })),
                         CaseName);

// Compares segments that carry a state with one long text.
class CarryTest : public TrainFormTest {
 protected:
  at::Tensor InSegments(const at::Tensor& packed) const {
    const int64_t segment = config().prefix_block > 0 ? config().prefix_block : 3;
    const MixerTables tables = To(tables_, packed.scalar_type());
    MixerCarry carry = EmptyMixerCarry(config(), packed.size(0), kHid);
    TrainFormOptions options;
    options.carry = &carry;
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : packed.split(segment, 1)) {
      parts.push_back(TrainForm(config(), part, tables, options));
    }
    return at::cat(parts, 1);
  }
};

TEST_P(CarryTest, SegmentsEqualOneLongText) {
  // The carry itself is fp32.
  EXPECT_LT(LargestDifference(InSegments(packed_), Expected(packed_, {})), tolerance::kFp32.each);
}

TEST_P(CarryTest, KeysMayRiseByHundreds) {
  const at::Tensor packed = SteepKeys(packed_, kHid);
  EXPECT_LT(LargestDifference(InSegments(packed), Expected(packed, {})),
            tolerance::kKeysRounded.each)
      << "keys of 1e3 are rounded to 6e-5";
}

// An empty carry must not count as a key of 0.
TEST_P(CarryTest, TheFirstKeysMayBeFarBelowZero) {
  if (config().kind == MixerKind::kWkv7) GTEST_SKIP() << "it has no exponentials of keys";
  at::Tensor packed = packed_.clone();
  packed.slice(2, kHid, 2 * kHid) -= 300.0;
  packed = packed.to(at::kFloat);
  EXPECT_LT(LargestDifference(InSegments(packed), Expected(packed, {})),
            tolerance::kKeysRounded.each);
}

INSTANTIATE_TEST_SUITE_P(Mixers, CarryTest, testing::ValuesIn(CasesWhere([](const Case& c) {
                           const int64_t block = c.config.prefix_block;
                           return CanCarry(c.config) && (block == 0 || c.tokens % block == 0) &&
                                  c.tokens <= 24;
                         })),
                         CaseName);

TEST(TrainFormGemmTest, BfloatOperandsStayCloseForEveryCausalKind) {
  for (const Case& c : Cases()) {
    if (!c.config.causal) continue;
    const at::Tensor packed =
        RandomDoubles({2, c.tokens, PackedWidth(c.config, kHid)}, 1).to(at::kFloat);
    const MixerTables tables = To(RandomTables(c.config, kHid, 2), at::kFloat);
    TrainFormOptions options;
    options.gemm = at::kBFloat16;
    const at::Tensor y = TrainForm(c.config, packed, tables, options);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_LT(LargestDifference(y, TensorReference(c.config, kHid, packed, tables)), 0.1)
        << c.mixer;
  }
}

TEST(TrainFormCarryTest, OnlyAShiftInvariantPrefixIsCarried) {
  EXPECT_TRUE(CanCarry(MixerOf("aft_simple")));
  EXPECT_TRUE(CanCarry(MixerOf("aft_local window=4")));
  for (const char* mixer : {"aft_simple causal=false", "aft_local window=4 band_rows=16",
                            "aft_full band_rows=16 bias=full", "dot_product"}) {
    EXPECT_FALSE(CanCarry(MixerOf(mixer))) << mixer;
  }
}

}  // namespace
}  // namespace aft
