// Segments with a carried state against one long text. The formula itself and the gradients are
// tested with every other form's in train_form_test.cc.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "gtest/gtest.h"
#include "model/train/forms/train_form.h"
#include "tests/support/tolerances.h"
#include "tests/unit/train/tensor_reference.h"

namespace aft {
namespace {

constexpr int64_t kHid = 5;

struct Case {
  int64_t tokens, window, prefix_block;
};

std::string Name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return "T" + std::to_string(c.tokens) + "_s" + std::to_string(c.window) + "_H" +
         std::to_string(c.prefix_block);
}

class AftLocalFormTest : public testing::TestWithParam<Case> {
 protected:
  AftLocalFormTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  const Case& c() const { return GetParam(); }
  int64_t segment() const { return c().prefix_block > 0 ? c().prefix_block : 3; }

  at::Tensor Expected(const at::Tensor& packed) const {
    return TensorReference(config_, kHid, packed, tables_);
  }

  at::Tensor InSegments(const at::Tensor& packed) const {
    MixerTables tables = tables_;
    for (auto& [name, table] : tables) table = table.to(packed.scalar_type());
    AftCarry carry = EmptyAftCarry(config_, 2, kHid);
    TrainFormOptions options;
    options.carry = &carry;
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < c().tokens; begin += segment()) {
      parts.push_back(
          TrainForm(config_, packed.slice(1, begin, begin + segment()), tables, options));
    }
    return at::cat(parts, 1);
  }

  static MixerConfig Config(const Case& c) {
    MixerConfig config;
    config.window = c.window;
    config.prefix_block = c.prefix_block;
    return config;
  }

  const at::Tensor packed_ = RandomDoubles({2, c().tokens, 3 * kHid}, 1) * 2;
  const MixerConfig config_ = Config(c());
  const MixerTables tables_ = RandomTables(config_, kHid, 2);
};

TEST_P(AftLocalFormTest, CarriedSegmentsEqualOneLongText) {
  // The carry itself is fp32.
  EXPECT_LT((InSegments(packed_) - Expected(packed_)).abs().max().item<double>(),
            tolerance::kFp32.each);
}

// Keys that rise by far more than an exponential holds, in some channels only; in fp32.
TEST_P(AftLocalFormTest, CarriesKeysThatRiseFar) {
  at::Tensor packed = packed_.clone();
  at::Tensor keys = packed.slice(2, kHid, 2 * kHid);
  for (int64_t t = 0; t < c().tokens; ++t) {
    keys.select(2, 1).select(1, t) += 40.0 * static_cast<double>(t);
    keys.select(2, 3).select(1, t) += t % 5 == 4 ? 300.0 : 0.0;
    keys.select(2, 4).select(1, t) -= 90.0 * static_cast<double>(t);
  }
  const at::Tensor y = InSegments(packed.to(at::kFloat));
  EXPECT_LT((y - Expected(packed)).abs().max().item<double>(), tolerance::kKeysRounded.each)
      << "keys of 1e3 are rounded to 6e-5";
}

INSTANTIATE_TEST_SUITE_P(Shapes, AftLocalFormTest,
                         testing::Values(Case{12, 0, 0}, Case{12, 0, 4}, Case{12, 1, 0},
                                         Case{24, 4, 0}, Case{24, 4, 4}, Case{24, 3, 8},
                                         Case{9, 20, 0}),
                         Name);

TEST(AftLocalFormBlocksTest, BlocksForgetWhatIsOlderThanTwoOfThem) {
  MixerConfig config;
  config.kind = MixerKind::kAftSimple;
  config.prefix_block = 8;
  const at::Tensor packed = RandomDoubles({1, 24, 3}, 1);
  at::Tensor changed = packed.clone();
  changed.select(1, 3).fill_(9);  // in block 0
  const at::Tensor difference = (TrainForm(config, packed, {}) - TrainForm(config, changed, {}))
                                    .abs()
                                    .sum(at::IntArrayRef({0, 2}));
  EXPECT_GT(difference.slice(0, 3, 16).min().item<double>(), 0);
  EXPECT_EQ(difference.slice(0, 16, 24).max().item<double>(), 0);
}

}  // namespace
}  // namespace aft
