// Tests steps that have more tokens than run at once, on the CPU, and positions behind the waves
// that are computed in advance.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "model/config/formats.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/layers/embedding.h"
#include "model/layers/weights.h"
#include "model/runtime/cpu_model_runner.h"
#include "tests/property/runner_fixture.h"

namespace aft {
namespace {

class LongStepTest : public RunnerFixture {};

// The runner cuts the step into parts; texts begin and end anywhere in these parts.
TEST_F(LongStepTest, ALongStepEqualsManyShortOnes) {
  options_.max_step_tokens = 4096;
  const std::unique_ptr<ModelRunner> runner = Load();
  static_assert(CpuModelRunner::kTokensAtOnce == 1024);  // the sizes below are made for this
  const std::vector<TokenId> sizes = {700, 400, 1, 1, 2100, 5};
  StepInput together;
  std::vector<StepOutput> alone;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto slot = static_cast<int32_t>(i);
    Bind(*runner, slot, Warm(slot));
    StepRow row = {slot, 0, RandomText(sizes[i]), RowOutput::kLast};
    if (i % 2 == 0) {
      row.output = RowOutput::kScore;
      row.targets.assign(row.tokens.begin() + (row.tokens.size() > 1 ? 1 : 0), row.tokens.end());
    }
    together.rows.push_back(row);
    StepOutput output;
    for (size_t first = 0; first < row.tokens.size(); first += 64) {
      const size_t last = std::min(first + 64, row.tokens.size());
      StepRow part = {slot, static_cast<int64_t>(first), {}, RowOutput::kNone};
      part.tokens.assign(row.tokens.begin() + first, row.tokens.begin() + last);
      if (i % 2 == 0) {
        part.output = RowOutput::kScore;
        part.targets.assign(row.targets.begin() + first,
                            row.targets.begin() + std::min(last, row.targets.size()));
      } else if (last == row.tokens.size()) {
        part.output = RowOutput::kLast;
      }
      const StepOutput of_part = Step(*runner, {{part}});
      for (const SampledToken& token : of_part.sampled) output.sampled.push_back(token);
      for (const auto& tokens : of_part.scored) {
        output.scored.resize(1);
        output.scored[0].insert(output.scored[0].end(), tokens.begin(), tokens.end());
      }
    }
    alone.push_back(output);
    Bind(*runner, slot, Warm(slot));
  }
  const StepOutput output = Step(*runner, together);
  ASSERT_EQ(output.sampled.size(), 3U);
  ASSERT_EQ(output.scored.size(), 3U);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i % 2 == 0) {
      EXPECT_TRUE(Same(output.scored[i / 2], alone[i].scored.at(0))) << i;
    } else {
      EXPECT_TRUE(Same(output.sampled[i / 2], alone[i].sampled.at(0))) << i;
    }
  }
}

TEST(EmbeddingTest, WavesAreExactAtAnyPosition) {
  NetworkConfig config;
  config.d_model = 4;
  config.position = PositionKind::kSinusoidal;
  const int64_t advance = Embedding::PositionFloats(config);
  auto arena = WeightArena::Create(4 * (advance + 16), Number::kFp32);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const Embedding embedding(config, {}, kernels::PackedWeight(), *arena);
  constexpr int64_t kTokens = 3;
  const int64_t first = advance / config.d_model - 1;  // the others are not computed in advance
  std::vector<float> x(kTokens * 4);
  embedding.AddPositions(kTokens, first, x.data());
  for (int64_t i = 0; i < kTokens; ++i) {
    const auto position = static_cast<double>(first + i);
    EXPECT_NEAR(x[4 * i], std::sin(position), 1e-6) << position;
    EXPECT_NEAR(x[4 * i + 3], std::cos(position / 100), 1e-6) << position;
  }
}

}  // namespace
}  // namespace aft
