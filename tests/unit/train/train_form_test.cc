// Every differentiable form against the formulas, and its gradients against finite differences.

#include "model/train/forms/train_form.h"

#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "tests/support/tolerances.h"
#include "tests/unit/train/tensor_reference.h"

namespace aft {
namespace {

constexpr int64_t kHid = 6;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  int64_t tokens;
  MixerConfig config;
  int64_t grid_width = 0;
};

MixerConfig Kind(MixerKind kind, bool causal = true) {
  MixerConfig config;
  config.kind = kind;
  config.causal = causal;
  return config;
}

MixerConfig Simple(int64_t prefix_block, bool causal = true) {
  MixerConfig config = Kind(MixerKind::kAftSimple, causal);
  config.prefix_block = prefix_block;
  return config;
}

MixerConfig Local(int64_t window, int64_t rows, BiasForm bias = BiasForm::kBand, bool causal = true,
                  LengthPolicy policy = LengthPolicy::kError, int64_t prefix_block = 0) {
  MixerConfig config = Kind(MixerKind::kAftLocal, causal);
  config.window = window;
  config.band_rows = rows;
  config.bias = bias;
  config.bias_rank = bias == BiasForm::kFactors ? 2 : 0;
  config.length_policy = policy;
  config.prefix_block = prefix_block;
  return config;
}

MixerConfig Full(int64_t rows, BiasForm bias, bool causal,
                 LengthPolicy policy = LengthPolicy::kError) {
  MixerConfig config = Local(0, rows, bias, causal, policy);
  config.kind = MixerKind::kAftFull;
  return config;
}

MixerConfig Conv(int64_t heads, int64_t window, bool causal) {
  MixerConfig config = Kind(MixerKind::kAftConv, causal);
  config.heads = heads;
  config.window = window;
  return config;
}

MixerConfig Grid(int64_t window) {
  MixerConfig config = Conv(2, window, false);
  config.grid = true;
  return config;
}

MixerConfig Reparameterized(MixerConfig config, bool unbiased, float eps) {
  config.reparameterized = true;
  config.unbiased_std = unbiased;
  config.std_eps = eps;
  return config;
}

MixerConfig Blocks(int64_t block, bool causal, bool global) {
  MixerConfig config = Kind(MixerKind::kBlockLocal, causal);
  config.block_size = block;
  config.global_token = global;
  config.heads = 2;
  return config;
}

std::vector<Case> Cases() {
  constexpr auto kClamp = LengthPolicy::kClamp;
  constexpr auto kZero = LengthPolicy::kZero;
  constexpr auto kBand = BiasForm::kBand;
  constexpr auto kFull = BiasForm::kFull;
  constexpr auto kFactors = BiasForm::kFactors;
  std::vector<Case> cases = {
      {"simple_1", 1, Simple(0)},
      {"simple", 12, Simple(0)},
      {"simple_tiles", 150, Simple(0)},
      {"simple_blocks", 14, Simple(4)},
      {"simple_bidirectional", 12, Simple(0, false)},
      {"local_s1", 12, Local(1, 0)},
      {"local", 24, Local(4, 0)},
      {"local_wide", 9, Local(20, 0)},
      {"local_tiles", 150, Local(5, 0)},
      {"local_wide_tiles", 150, Local(70, 0)},
      {"local_blocks", 24, Local(4, 0, kBand, true, LengthPolicy::kError, 4)},
      {"local_rows", 12, Local(4, 16)},
      {"local_rows_tiles", 150, Local(4, 150)},
      {"local_rows_clamp", 13, Local(4, 7, kBand, true, kClamp)},
      {"local_rows_zero", 13, Local(4, 7, kBand, true, kZero)},
      {"local_rows_blocks", 13, Local(4, 16, kBand, true, LengthPolicy::kError, 4)},
      {"local_rows_blocks_clamp", 13, Local(4, 7, kBand, true, kClamp, 5)},
      {"local_full", 12, Local(4, 12, kFull)},
      {"local_full_wide", 6, Local(12, 8, kFull)},
      {"local_full_clamp", 13, Local(4, 7, kFull, true, kClamp)},
      {"local_factors", 12, Local(4, 16, kFactors)},
      {"local_bidirectional", 12, Local(4, 0, kBand, false)},
      {"local_bidirectional_rows", 12, Local(4, 16, kBand, false)},
      {"local_bidirectional_clamp", 12, Local(4, 5, kBand, false, kClamp)},
      {"local_bidirectional_full", 12, Local(4, 16, kFull, false)},
      {"local_bidirectional_full_clamp", 12, Local(4, 7, kFull, false, kClamp)},
      {"local_bidirectional_factors_zero", 12, Local(4, 7, kFactors, false, kZero)},
      {"full_1", 1, Full(4, kFull, true)},
      {"full", 12, Full(12, kFull, true)},
      {"full_part", 9, Full(12, kFull, true)},
      {"full_clamp", 12, Full(7, kFull, true, kClamp)},
      {"full_zero", 12, Full(7, kFull, true, kZero)},
      {"full_factors", 12, Full(14, kFactors, true)},
      {"full_bidirectional", 12, Full(12, kFull, false)},
      {"full_bidirectional_clamp", 17, Full(7, kFull, false, kClamp)},
      {"full_bidirectional_factors_zero", 12, Full(7, kFactors, false, kZero)},
      {"conv", 12, Conv(2, 3, true)},
      {"conv_s1", 7, Conv(6, 1, true)},
      {"conv_wide", 5, Conv(3, 9, true)},
      {"conv_tiles", 150, Conv(2, 4, true)},
      {"conv_reparameterized", 12, Reparameterized(Conv(2, 4, true), true, 0)},
      {"conv_reparameterized_biased", 12, Reparameterized(Conv(2, 4, true), false, 1e-2F)},
      {"conv_same", 12, Conv(2, 5, false)},
      {"conv_grid", 12, Grid(3), 4},
      {"conv_grid_wide", 15, Grid(5), 3},
      {"conv_grid_reparameterized", 12, Reparameterized(Grid(3), true, 1e-3F), 3},
      {"block_1", 1, Blocks(4, true, true)},
      {"block_exact", 8, Blocks(4, true, true)},
      {"block", 15, Blocks(4, true, true)},
      {"block_no_global", 15, Blocks(4, true, false)},
      {"block_size_1", 6, Blocks(1, true, true)},
      {"block_bidirectional_1", 1, Blocks(4, false, true)},
      {"block_bidirectional", 15, Blocks(4, false, true)},
      {"block_bidirectional_exact", 16, Blocks(4, false, true)},
      {"block_bidirectional_no_global", 15, Blocks(4, false, false)},
  };
  for (const KindSpec& kind : AllKinds()) {
    for (const bool causal : {true, false}) {
      const std::string name = std::string(kind.name) + (causal ? "_causal" : "_both_ways");
      cases.push_back({name, 12, ExampleMixer(kind.kind, 12, causal)});
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) { return info.param.name; }

// Masks of two sequences: none, padding in front (token 0 too) and behind, soft scores.
std::vector<at::Tensor> Masks(int64_t tokens) {
  at::Tensor padded = at::zeros({2, tokens}, at::kDouble);
  padded[0].slice(0, 0, (tokens + 2) / 3).fill_(kHidden);
  padded[1].slice(0, tokens - tokens / 3, tokens).fill_(-1e38);
  at::Tensor soft = RandomDoubles({2, tokens}, 7);
  soft[1].fill_(kHidden);
  return {at::Tensor(), padded, soft};
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class TrainFormTest : public testing::TestWithParam<Case> {
 protected:
  TrainFormTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  const MixerConfig& config() const { return GetParam().config; }
  int64_t tokens() const { return GetParam().tokens; }

  at::Tensor Form(const at::Tensor& packed, const MixerTables& tables, const at::Tensor& mask) {
    TrainFormOptions options;
    options.mask = mask;
    options.grid_width = GetParam().grid_width;
    return TrainForm(config(), packed, tables, options);
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
  for (const at::Tensor& mask : Masks(tokens())) {
    const at::Tensor expected = Expected(packed_, mask);
    EXPECT_LT(LargestDifference(Form(packed_, tables_, mask), expected),
              tolerance::kDifferentiableFp64);
    const at::Tensor single = Form(packed_.to(at::kFloat), To(tables_, at::kFloat),
                                   mask.defined() ? mask.to(at::kFloat) : at::Tensor());
    EXPECT_EQ(single.scalar_type(), at::kFloat);
    EXPECT_LT(LargestDifference(single, expected), tolerance::kDifferentiable.each);
  }
}

TEST_P(TrainFormTest, GradientsEqualFiniteDifferences) {
  const at::Tensor weights = RandomDoubles({2, tokens(), kHid}, 3);
  for (const at::Tensor& mask : Masks(tokens())) {
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
        EXPECT_NEAR(grad.const_data_ptr<double>()[i], difference, tolerance::kFiniteDifference)
            << name << " element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, TrainFormTest, testing::ValuesIn(Cases()), CaseName);

// What one exponential relative to a shared maximum cannot hold: keys that rise by hundreds, and
// biases of hundreds; in fp32.
class ExtremeTest : public TrainFormTest {};

TEST_P(ExtremeTest, KeysAndBiasesOfAnySizeStayExact) {
  const bool conv = config().kind == MixerKind::kAftConv;
  at::Tensor packed = packed_.clone();
  at::Tensor keys = packed.slice(2, kHid, kHid + (conv ? config().heads : kHid));
  for (int64_t t = 0; t < tokens(); ++t) {
    keys.select(2, 1).select(1, t) += 40.0 * static_cast<double>(t);
    if (keys.size(2) < 4) continue;
    keys.select(2, 2).select(1, t) += t % 5 == 4 ? 300.0 : 0.0;
    keys.select(2, 3).select(1, t) -= 90.0 * static_cast<double>(t);
  }
  MixerTables steep = tables_;
  for (auto& [name, table] : steep) table = table * 150;
  for (const MixerTables& tables : {tables_, steep}) {
    const at::Tensor expected = TensorReference(config(), kHid, packed.to(at::kFloat),
                                                To(tables, at::kFloat), {}, GetParam().grid_width);
    at::Tensor leaf = packed.to(at::kFloat).set_requires_grad(true);
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

std::vector<Case> AftCases() {
  std::vector<Case> cases;
  for (const Case& c : Cases()) {
    if (SpecOf(c.config.kind).family != KernelFamily::kAttention) cases.push_back(c);
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Mixers, ExtremeTest, testing::ValuesIn(AftCases()), CaseName);

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
    EXPECT_LT(LargestDifference(y, TensorReference(c.config, kHid, packed, tables)), 0.1) << c.name;
  }
}

TEST(TrainFormCarryTest, OnlyAShiftInvariantPrefixIsCarried) {
  EXPECT_TRUE(CanCarry(Simple(0)));
  EXPECT_TRUE(CanCarry(Local(4, 0)));
  EXPECT_FALSE(CanCarry(Simple(0, false)));
  EXPECT_FALSE(CanCarry(Local(4, 16)));
  EXPECT_FALSE(CanCarry(Full(16, BiasForm::kFull, true)));
  EXPECT_FALSE(CanCarry(ExampleMixer(MixerKind::kDotProduct, 16)));
}

}  // namespace
}  // namespace aft
