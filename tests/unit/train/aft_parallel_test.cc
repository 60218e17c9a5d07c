// The differentiable form against the equation, written as loops in double.

#include "model/mixers/aft_parallel.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

struct Case {
  int64_t tokens, window, prefix_block, band_rows;
};

std::string Name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return "T" + std::to_string(c.tokens) + "_s" + std::to_string(c.window) + "_H" +
         std::to_string(c.prefix_block) + "_rows" + std::to_string(c.band_rows);
}

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

// arXiv 2105.14103 eq. 2 and 4, with the block rule of network/config.h.
at::Tensor Reference(const at::Tensor& packed, const at::Tensor& band, int64_t window,
                     int64_t prefix_block) {
  const int64_t batch = packed.size(0), tokens = packed.size(1), hid = packed.size(2) / 3;
  at::Tensor y = packed.slice(2, 0, hid).clone();
  const auto x = packed.accessor<double, 3>();
  auto out = y.accessor<double, 3>();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t first =
          prefix_block > 0 ? std::max<int64_t>(0, t / prefix_block - 1) * prefix_block : 0;
      for (int64_t c = 0; c < hid; ++c) {
        double num = 0, den = 0, max = -1e300;
        for (int64_t j = first; j <= t; ++j) max = std::max(max, x[b][j][hid + c]);
        for (int64_t j = first; j <= t; ++j) {
          double w = 0;
          if (t - j < window) {
            w = band.accessor<double, 2>()[band.size(0) == 1 ? 0 : t][t - j];
          }
          const double e = std::exp(x[b][j][hid + c] - max + w);
          num += e * x[b][j][2 * hid + c];
          den += e;
        }
        out[b][t][c] = num / den / (1 + std::exp(-x[b][t][c]));
      }
    }
  }
  return y;
}

class AftParallelTest : public testing::TestWithParam<Case> {
 protected:
  const Case& c() const { return GetParam(); }
  at::Tensor packed_ = Random({2, c().tokens, 3 * 5}, 1) * 2;
  at::Tensor band_ = c().window > 0 ? Random({std::max<int64_t>(1, c().band_rows), c().window}, 2)
                                    : at::Tensor();
};

TEST_P(AftParallelTest, EqualsTheEquation) {
  const at::Tensor y = AftParallel(packed_, band_, c().window, c().prefix_block);
  const at::Tensor expected = Reference(packed_, band_, c().window, c().prefix_block);
  EXPECT_LT((y - expected).abs().max().item<double>(), 1e-12);
}

TEST_P(AftParallelTest, CarriedSegmentsEqualOneLongText) {
  if (c().band_rows > 0) return;  // a bias by absolute position is not carried
  const int64_t segment = c().prefix_block > 0 ? c().prefix_block : 3;
  if (c().tokens % segment != 0) return;  // segments would not fill the text
  AftCarry carry = EmptyAftCarry(2, 5, c().window, c().prefix_block);
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < c().tokens; begin += segment) {
    parts.push_back(AftParallel(packed_.slice(1, begin, begin + segment), band_, c().window,
                                c().prefix_block, &carry));
  }
  const at::Tensor expected = Reference(packed_, band_, c().window, c().prefix_block);
  // The carry itself is fp32.
  EXPECT_LT((at::cat(parts, 1) - expected).abs().max().item<double>(), 1e-5);
}

TEST_P(AftParallelTest, GradientsEqualFiniteDifferences) {
  at::Tensor packed = packed_.clone().set_requires_grad(true);
  at::Tensor band = band_.defined() ? band_.clone().set_requires_grad(true) : band_;
  const at::Tensor weights = Random({2, c().tokens, 5}, 3);
  const auto loss = [&](const at::Tensor& p, const at::Tensor& w) {
    return (AftParallel(p, w, c().window, c().prefix_block) * weights).sum();
  };
  loss(packed, band).backward();
  const auto check = [&](const at::Tensor& tensor, const at::Tensor& grad, bool is_band) {
    const int64_t count = tensor.numel();
    for (int64_t i = 0; i < count; i += 1 + count / 40) {
      constexpr double kStep = 1e-5;
      double difference = 0;
      for (const double sign : {1.0, -1.0}) {
        const at::Tensor moved = tensor.detach().clone();
        moved.data_ptr<double>()[i] += sign * kStep;
        const at::Tensor value = is_band
                                     ? loss(packed.detach(), moved)
                                     : loss(moved, band.defined() ? band.detach() : at::Tensor());
        difference += sign * value.item<double>() / (2 * kStep);
      }
      EXPECT_NEAR(grad.contiguous().data_ptr<double>()[i], difference, 1e-6) << "element " << i;
    }
  };
  check(packed, packed.grad(), false);
  if (band.defined()) check(band, band.grad(), true);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AftParallelTest,
                         testing::Values(Case{1, 0, 0, 0}, Case{12, 0, 0, 0}, Case{12, 0, 4, 0},
                                         Case{12, 1, 0, 0}, Case{24, 4, 0, 0}, Case{24, 4, 4, 0},
                                         Case{24, 3, 8, 0}, Case{10, 4, 8, 0}, Case{9, 20, 0, 0},
                                         Case{12, 4, 0, 16}, Case{10, 4, 8, 16}),
                         Name);

// Keys that rise by far more than an exponential holds, in some channels only; in fp32.
TEST_P(AftParallelTest, ExactWhenTheMaximumRisesFar) {
  const int64_t block = c().prefix_block;
  at::Tensor packed = packed_.clone();
  at::Tensor keys = packed.slice(2, 5, 10);
  for (int64_t t = 0; t < c().tokens; ++t) {
    keys.select(2, 1).select(1, t) += 40.0 * static_cast<double>(t);
    keys.select(2, 3).select(1, t) += t % 5 == 4 ? 300.0 : 0.0;
    keys.select(2, 4).select(1, t) -= 90.0 * static_cast<double>(t);
  }
  const at::Tensor expected = Reference(packed, band_, c().window, block);
  const at::Tensor band = band_.defined() ? band_.to(at::kFloat) : band_;
  at::Tensor leaf = packed.to(at::kFloat).set_requires_grad(true);
  const at::Tensor y = AftParallel(leaf, band, c().window, block);
  EXPECT_LT((y - expected).abs().max().item<double>(), 2e-3) << "keys of 1e3 are rounded to 6e-5";
  y.sum().backward();
  EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>());

  const int64_t segment = block > 0 ? block : 3;
  if (c().band_rows > 0 || c().tokens % segment != 0) return;
  AftCarry carry = EmptyAftCarry(2, 5, c().window, block);
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < c().tokens; begin += segment) {
    parts.push_back(AftParallel(leaf.detach().slice(1, begin, begin + segment), band, c().window,
                                block, &carry));
  }
  EXPECT_LT((at::cat(parts, 1) - expected).abs().max().item<double>(), 2e-3);
}

TEST(AftParallelTest, BlocksForgetWhatIsOlderThanTwoOfThem) {
  const at::Tensor packed = Random({1, 24, 3}, 1);
  at::Tensor changed = packed.clone();
  changed.select(1, 3).fill_(9);  // in block 0
  const at::Tensor difference = (AftParallel(packed, {}, 0, 8) - AftParallel(changed, {}, 0, 8))
                                    .abs()
                                    .sum(at::IntArrayRef({0, 2}));
  EXPECT_GT(difference.slice(0, 3, 16).min().item<double>(), 0);
  EXPECT_EQ(difference.slice(0, 16, 24).max().item<double>(), 0);
}

}  // namespace
}  // namespace aft
