// Tests runners on the CPU with steps and batches for which there is not enough memory.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/short_memory.h"

namespace aft {
namespace {

class RunnerMemoryTest : public RunnerFixture {};

// The memory is missing on the runner's threads: each has its own memory for logits that it
// changes.
TEST_F(RunnerMemoryTest, AStepWithoutMemoryFailsAndTheNextOneWorks) {
  constexpr int32_t kSlots = 80;  // logits for two threads
  options_.slots = kSlots;
  options_.max_step_tokens = 100;
  options_.intra_op_threads = 2;
  const std::unique_ptr<ModelRunner> runner = Load();
  SamplingParams params = Warm(1);
  params.repetition_penalty = 1.5F;
  StepInput step;
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    Bind(*runner, slot, params);
    step.rows.push_back({slot, 0, {slot + 1}, RowOutput::kLast});
  }
  {
    const ShortMemory short_memory(static_cast<size_t>(config_.vocab_size) * sizeof(float));
    EXPECT_EQ(runner->Submit(step).status().code(), absl::StatusCode::kResourceExhausted);
  }
  for (int32_t slot = 0; slot < kSlots; ++slot) Bind(*runner, slot, params);
  const StepOutput output = Step(*runner, step);
  ASSERT_EQ(output.sampled.size(), size_t{kSlots});
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    const auto alone = Generate(*runner, slot, {slot + 1}, 1, params);
    EXPECT_TRUE(Same(output.sampled[static_cast<size_t>(slot)], alone.at(0))) << slot;
  }
}

TEST_F(RunnerMemoryTest, ABatchWithoutMemoryForItsVectorsFailsAndTheNextOneWorks) {
  config_ = EncoderCases().front().config;
  options_.max_batch_rows = 1;
  options_.max_batch_tokens = kCaseTokens;
  const std::unique_ptr<EncoderRunner> encoder = LoadEncoder();
  const std::vector<TokenId> text = RandomText(kCaseTokens);
  const std::vector<float> vectors = Encode(*encoder, {text});
  {
    std::vector<EncoderInput> batch(1);
    batch.front().text = text;
    const ShortMemory short_memory(vectors.size() * sizeof(float));
    EXPECT_EQ(encoder->Encode(batch).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Encode(*encoder, {text}), vectors);
}

}  // namespace
}  // namespace aft
