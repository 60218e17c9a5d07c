// Tests of the whole GPU runner, which must give the same tokens as the CPU for any step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_model/runner_pair.h"
#include "tests/support/close.h"
#include "tests/support/collect.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Draws the steps of random sequences in all slots: prompts, texts to score and to encode in chunks
// of any length, and decodes, in any order. A slot gets a new sequence when its last one ends.
class Traffic {
 public:
  Traffic(TestRandom* random, int64_t vocab_size, int32_t slots)
      : random_(random), vocab_size_(vocab_size), sequences_(static_cast<size_t>(slots)) {}

  // Calls `bind` with each slot that must be bound before this step.
  template <typename Bind>
  StepInput Next(int64_t budget, int64_t longest, const Bind& bind) {
    StepInput step;
    for (int32_t slot : Shuffled()) {
      Sequence& sequence = sequences_[static_cast<size_t>(slot)];
      if (sequence.text.empty() || sequence.position >= sequence.ends) {
        sequence = {};
        sequence.text.resize(static_cast<size_t>(1 + random_->Below(18)));
        for (TokenId& token : sequence.text) token = Token();
        sequence.ends = static_cast<int64_t>(sequence.text.size()) + random_->Below(12);
        sequence.scores = random_->Below(4) == 0;
        sequence.encodes = !sequence.scores && random_->Below(4) == 0;
        if (sequence.scores || sequence.encodes) {
          sequence.ends = static_cast<int64_t>(sequence.text.size());
        }
        bind(slot);
      }
      if (budget == 0 || random_->Below(4) == 0) continue;
      step.rows.push_back(Row(slot, &sequence, std::min(budget, 1 + random_->Below(longest))));
      budget -= static_cast<int64_t>(step.rows.back().tokens.size());
    }
    return step;
  }

  void Learn(const StepInput& step, const StepOutput& output) {
    size_t sampled = 0;
    for (const StepRow& row : step.rows) {
      if (row.output != RowOutput::kLast) continue;
      sequences_[static_cast<size_t>(row.slot)].text.push_back(output.sampled.at(sampled++).id);
    }
  }

 private:
  struct Sequence {
    std::vector<TokenId> text;  // the prompt and the sampled tokens
    int64_t position = 0;
    int64_t ends = 0;
    bool scores = false;
    bool encodes = false;
  };

  TokenId Token() { return static_cast<TokenId>(random_->Below(vocab_size_)); }

  std::vector<int32_t> Shuffled() {
    std::vector<int32_t> slots(sequences_.size());
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    for (size_t i = slots.size(); i > 1; --i) {
      std::swap(slots[i - 1], slots[static_cast<size_t>(random_->Below(static_cast<int64_t>(i)))]);
    }
    return slots;
  }

  StepRow Row(int32_t slot, Sequence* sequence, int64_t most) {
    const int64_t left = static_cast<int64_t>(sequence->text.size()) - sequence->position;
    const int64_t tokens = std::min(left, most);
    const auto begin = sequence->text.begin() + sequence->position;
    StepRow row;
    row.slot = slot;
    row.first_position = sequence->position;
    row.tokens.assign(begin, begin + tokens);
    sequence->position += tokens;
    if (sequence->scores) {
      row.output = RowOutput::kScore;
      row.targets.assign(begin + 1, begin + std::min(tokens + 1, left));
    } else if (sequence->encodes) {
      row.output = RowOutput::kHidden;
      row.hidden = 1 + random_->Below(tokens);
    } else if (tokens == left) {
      row.output = RowOutput::kLast;
    }
    return row;
  }

  TestRandom* const random_;
  const int64_t vocab_size_;
  std::vector<Sequence> sequences_;
};

class GpuRunnerTest : public RunnerPairFixture {};

class EveryKindOnGpuTest : public RunnerPairFixture,
                           public testing::WithParamInterface<NetworkCase> {};

TEST_P(EveryKindOnGpuTest, GivesTheTokensOfTheCpuForAnyStep) {
  config_ = GetParam().config;
  const auto cpu = Cpu();
  const auto gpu = Gpu();
  Traffic traffic(&random_, config_.vocab_size, kSlots);
  bool graph = false;
  for (int i = 0; i < 12; ++i) {
    const int64_t longest = i % 3 == 2 ? 1 : 8;  // every third step has only single tokens
    const StepInput step = traffic.Next(kStepTokens, longest, [&](int32_t slot) {
      const SamplingParams params = AnyParams();
      Bind(*cpu, slot, params);
      Bind(*gpu, slot, params);
    });
    const StepOutput expected = Step(*cpu, step);
    ExpectNear(Step(*gpu, step), expected);
    if (HasFailure()) break;
    traffic.Learn(step, expected);
    graph = graph || gpu->device_stats()->step_was_graph;
  }
  EXPECT_TRUE(graph);
  // This step has more outputs than any graph.
  StepRow text = {.slot = 0, .tokens = RandomText(kStepTokens), .output = RowOutput::kScore};
  text.targets = RandomText(kStepTokens);
  Bind(*cpu, 0, Greedy());
  Bind(*gpu, 0, Greedy());
  ExpectNear(Step(*gpu, {{text}}), Step(*cpu, {{text}}));
  EXPECT_FALSE(gpu->device_stats()->step_was_graph);
  ExpectTheSameTokens();
}

// With AFT_CUDA_FULL=1 these are all cases of config.json. Otherwise they are each kind of mixer
// and the cases that matter to a runner.
std::vector<NetworkCase> Cases() {
  std::vector<NetworkCase> cases;
  for (NetworkCase& one : DecoderCases()) {
    const bool kind = cases.size() < AllKinds().size();
    const bool seen = one.name == "narrow_learned_relu";
    if (kind || seen || std::getenv("AFT_CUDA_FULL") != nullptr) cases.push_back(std::move(one));
  }
  cases.push_back(FullDecodeCase());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Runner, EveryKindOnGpuTest, testing::ValuesIn(Cases()), CaseName);

// Compares weights of 16 bits on the GPU with fp32 on the CPU.
class SixteenBitsTest : public RunnerPairFixture,
                        public testing::WithParamInterface<NetworkCase> {};

TEST_P(SixteenBitsTest, DistributionsAreCloseToThoseOfFp32) {
  config_ = GetParam().config;
  config_.vocab_size = kMaxTopLogprobs;
  const auto cpu = Cpu();
  for (const auto& [format, allowed, vectors] :
       {std::tuple(Number::kBf16, tolerance::kDivergenceBf16, tolerance::kVectorsBf16),
        std::tuple(Number::kFp16, tolerance::kDivergenceFp16, tolerance::kVectorsFp16)}) {
    format_ = format;
    const auto gpu = Gpu();
    const std::vector<TokenId> text = RandomText(40);
    for (const size_t chunk : {1U, 21U}) {
      const std::vector<SampledToken> exact = Score(*cpu, 0, text, kMaxTopLogprobs, chunk);
      const std::vector<SampledToken> scored = Score(*gpu, 0, text, kMaxTopLogprobs, chunk);
      ASSERT_EQ(scored.size(), exact.size());
      for (size_t i = 0; i < exact.size(); ++i) {
        ASSERT_EQ(exact[i].top.size(), static_cast<size_t>(config_.vocab_size));
        EXPECT_LE(Divergence(exact[i], scored[i]), allowed) << NumberName(format) << ", " << i;
      }
      EXPECT_TRUE(Close(Hidden(*gpu, 0, text, chunk), Hidden(*cpu, 0, text, chunk), vectors))
          << NumberName(format);
    }
    // The format of the state does not depend on the format of the weights.
    Bind(*cpu, 1, SnapshotOf(*gpu, 0), {});
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, SixteenBitsTest, testing::ValuesIn(DecoderCases()), CaseName);

// A feed-forward with a squared ReLU has activations up to 10^6 here, and fp16 ends at 65,504.
TEST_F(GpuRunnerTest, InFp16ASquaredReluDoesNotOverflow) {
  for (const MixerKind kind : {MixerKind::kWkv4, MixerKind::kWkv7}) {
    UseMixer(ExampleMixer(kind, kCaseTokens), &config_);
    config_.vocab_size = kMaxTopLogprobs;
    DrawWeights();
    for (int layer = 0; layer < config_.n_layers; ++layer) {
      const std::string ffn = absl::StrCat("layers.", layer, ".ffn.");
      tensors_.at(ffn + "up.weight").mul_(1000);
      tensors_.at(ffn + "down.weight").div_(1000);
    }
    format_ = Number::kFp16;
    const std::vector<TokenId> text = RandomText(20);
    const std::vector<SampledToken> exact = Score(*Cpu(), 0, text, kMaxTopLogprobs, text.size());
    const std::vector<SampledToken> scored = Score(*Gpu(), 0, text, kMaxTopLogprobs, text.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(Divergence(exact[i], scored.at(i)), tolerance::kDivergenceBf16) << i;
    }
  }
}

class SixteenBitEncoderTest : public SixteenBitsTest {};

TEST_P(SixteenBitEncoderTest, VectorsStayClose) {
  config_ = GetParam().config;
  options_.max_step_tokens = kCaseTokens;
  DrawWeights();
  const std::vector<std::vector<TokenId>> texts = {RandomText(17), RandomText(1), RandomText(40)};
  const std::vector<float> exact = Encode(*CpuEncoder(), texts);
  format_ = Number::kBf16;
  EXPECT_TRUE(Close(Encode(*GpuEncoder(), texts), exact, tolerance::kVectorsBf16));
  format_ = Number::kFp16;
  EXPECT_TRUE(Close(Encode(*GpuEncoder(), texts), exact, tolerance::kVectorsFp16));
}

INSTANTIATE_TEST_SUITE_P(Encoders, SixteenBitEncoderTest, testing::ValuesIn(EncoderCases()),
                         CaseName);

TEST_F(GpuRunnerTest, TwoStepsInFlightEqualOneAtATime) {
  DrawWeights();
  const std::vector<std::vector<TokenId>> prompts = {RandomText(4), RandomText(1), RandomText(7)};
  constexpr size_t kCount = 12;
  const auto generate = [&](size_t in_flight) {
    const auto gpu = Gpu();
    EXPECT_EQ(gpu->max_steps_in_flight(), 2);
    StepInput step;
    for (int32_t i = 0; i < 3; ++i) {
      Bind(*gpu, i, Warm(7 + static_cast<uint64_t>(i)));
      step.rows.push_back({i, 0, prompts[static_cast<size_t>(i)], RowOutput::kLast});
    }
    std::vector<SampledToken> sampled;
    std::vector<ModelRunner::Ticket> tickets;
    for (size_t collected = 0; collected < kCount;) {
      if (tickets.size() < kCount && tickets.size() < collected + in_flight) {
        const auto ticket = gpu->Submit(step);
        EXPECT_TRUE(ticket.ok()) << ticket.status();
        tickets.push_back(*ticket);
        for (StepRow& row : step.rows) {
          row.first_position += static_cast<int64_t>(row.tokens.size());
          row.tokens = {kLastSampled};
        }
        continue;
      }
      auto output = Collect(*gpu, tickets[collected++]);
      EXPECT_TRUE(output.ok()) << output.status();
      for (SampledToken& token : output->sampled) sampled.push_back(std::move(token));
    }
    return sampled;
  };
  const std::vector<SampledToken> one_at_a_time = generate(1);
  EXPECT_EQ(one_at_a_time.size(), 3 * kCount);
  EXPECT_TRUE(Same(generate(2), one_at_a_time));
}

TEST_F(GpuRunnerTest, OnlyTwoStepsAreInFlightAndTheyAreCollectedInOrder) {
  const auto gpu = Gpu();
  Bind(*gpu, 0, Greedy());
  const auto first = gpu->Submit({{{0, 0, {1, 2}, RowOutput::kLast}}});
  const auto second = gpu->Submit({{{0, 2, {kLastSampled}, RowOutput::kLast}}});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(gpu->Submit({{{0, 3, {kLastSampled}, RowOutput::kLast}}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Collect(*gpu, *second).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Collect(*gpu, *first).ok());
  EXPECT_TRUE(Collect(*gpu, *second).ok());
  EXPECT_EQ(Collect(*gpu, *second).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GpuRunnerTest, GraphsAndStepsByOperatorGiveTheSameBits) {
  const auto graphs = Gpu();
  options_.graphs = false;
  const auto eager = Gpu();
  Traffic traffic(&random_, config_.vocab_size, kSlots);
  int64_t graph_steps = 0;
  int64_t graph_chunks = 0;
  for (int i = 0; i < 30; ++i) {
    const StepInput step = traffic.Next(kStepTokens, i % 3 == 2 ? 1 : 8, [&](int32_t slot) {
      const SamplingParams params = AnyParams();
      Bind(*graphs, slot, params);
      Bind(*eager, slot, params);
    });
    const StepOutput a = Step(*graphs, step);
    const StepOutput b = Step(*eager, step);
    ASSERT_TRUE(Same(a.sampled, b.sampled));
    ASSERT_EQ(a.scored.size(), b.scored.size());
    for (size_t n = 0; n < a.scored.size(); ++n) ASSERT_TRUE(Same(a.scored[n], b.scored[n]));
    traffic.Learn(step, a);
    const bool chunks = std::any_of(step.rows.begin(), step.rows.end(),
                                    [](const StepRow& row) { return row.tokens.size() > 1; });
    if (graphs->device_stats()->step_was_graph) ++(chunks ? graph_chunks : graph_steps);
    EXPECT_FALSE(eager->device_stats()->step_was_graph);
  }
  EXPECT_GT(graph_steps, 0);
  EXPECT_GT(graph_chunks, 0);
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    EXPECT_EQ(SnapshotOf(*graphs, slot), SnapshotOf(*eager, slot));
  }
}

// Returns the numbers of rows of the shapes for steps of single tokens.
std::vector<int64_t> DecodeRows(int32_t slots) {
  std::vector<int64_t> rows;
  const GpuStepShapes shapes(slots, slots + 1);
  for (const GpuStepShape& shape : shapes.all()) {
    if (shape.chunks == 0) rows.push_back(shape.decode);
  }
  return rows;
}

TEST(GpuStepShapesTest, DecodeShapesAreFewAndReachAllSlots) {
  EXPECT_THAT(DecodeRows(1), ElementsAre(1));
  EXPECT_THAT(DecodeRows(5), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(DecodeRows(64), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(DecodeRows(200), ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 192, 200));
  for (const int32_t slots : {1, 63, 65, 1000, 1024, 65'535}) {
    const std::vector<int64_t> rows = DecodeRows(slots);
    EXPECT_EQ(rows.back(), slots);
    EXPECT_LE(rows.size(), 48U);
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end(), std::less_equal<>()));
  }
}

// Every step whose prompts are not very short has a shape that is not much larger than the step.
TEST(GpuStepShapesTest, StepsWithPromptsHaveAShapeThatFitsThem) {
  TestRandom random;
  for (const auto& [slots, max_tokens] : {std::pair<int32_t, int64_t>{1, 2},
                                          {1, 64},
                                          {5, 24},
                                          {64, 65},
                                          {64, 256},
                                          {1024, 2048},
                                          {7, 8192},
                                          {65'535, 65'536}}) {
    const GpuStepShapes shapes(slots, max_tokens);
    EXPECT_LE(shapes.all().size(), 200U);
    for (const GpuStepShape& shape : shapes.all()) {
      EXPECT_LE(shape.decode, shapes.limits().slots);
      EXPECT_LE(shape.chunks, shapes.limits().rows);
      EXPECT_LE(shape.tokens, shapes.limits().tokens);
      EXPECT_LE(shape.chunks, kernels::cuda::kMaxRows);
      EXPECT_LE(shape.outputs, shape.decode + std::max<int64_t>(shape.chunks - 1, 0));
    }
    EXPECT_EQ(shapes.limits().slots, slots);
    EXPECT_LE(shapes.limits().tokens, max_tokens + slots);
    for (int i = 0; i < 1000; ++i) {
      GpuStepShape step;
      step.decode = random.Below(std::min<int64_t>(slots, max_tokens - 1));
      const int64_t tokens = 2 + random.Below(max_tokens - step.decode - 1);
      const int64_t chunks = std::min(slots - step.decode, std::max<int64_t>(tokens / 64, 4));
      step.chunks = 1 + random.Below(std::min(chunks, tokens / 2));
      step.tokens = step.decode + tokens;
      step.outputs = random.Below(step.decode + step.chunks + 1);
      const int64_t index = shapes.IndexFor(step);
      ASSERT_GE(index, 0) << slots << ", " << step.decode << " + " << tokens;
      const GpuStepShape& shape = shapes.all()[static_cast<size_t>(index)];
      EXPECT_GE(shape.decode, step.decode);
      EXPECT_GT(shape.chunks, step.chunks);
      EXPECT_GE(shape.chunk_tokens(), tokens);
      EXPECT_GE(shape.outputs, step.outputs);
      EXPECT_LE(shape.decode, std::max<int64_t>(2 * step.decode, 32));
      EXPECT_LE(shape.chunk_tokens(), std::max<int64_t>(2 * tokens, 32));
    }
  }
}

TEST(GpuStepShapesTest, AChunkLeavesOneSlotLessForSingleTokens) {
  for (const int32_t slots : {1, 2, 33, 65}) {
    const GpuStepShapes shapes(slots, 256);
    int64_t most = 0;
    for (const GpuStepShape& shape : shapes.all()) {
      if (shape.chunks > 0) most = std::max(most, shape.decode);
    }
    EXPECT_EQ(most, slots - 1);
  }
}

TEST(GpuStepShapesTest, ATextToScoreHasNoShape) {
  const GpuStepShapes shapes(64, 256);
  EXPECT_EQ(shapes.IndexFor({.chunks = 1, .tokens = 200, .outputs = 199}), -1);
  EXPECT_GE(shapes.IndexFor({.chunks = 1, .tokens = 200, .outputs = 1}), 0);
}

TEST_F(GpuRunnerTest, PaddingTouchesNoSlot) {
  const auto gpu = Gpu();
  for (int32_t slot = 0; slot < kSlots; ++slot) Generate(*gpu, slot, RandomText(6), 3, Warm(5));
  std::vector<std::string> before;
  for (int32_t slot = 0; slot < kSlots; ++slot) before.push_back(SnapshotOf(*gpu, slot));
  // Three rows run in a graph of four.
  Step(*gpu, {{{4, 8, {1}, RowOutput::kLast},
               {0, 8, {2}, RowOutput::kNone},
               {2, 8, {3}, RowOutput::kScore, {1}}}});
  EXPECT_TRUE(gpu->device_stats()->step_was_graph);
  EXPECT_EQ(SnapshotOf(*gpu, 1), before[1]);
  EXPECT_EQ(SnapshotOf(*gpu, 3), before[3]);
  EXPECT_NE(SnapshotOf(*gpu, 0), before[0]);
  // A row and a chunk run in a shape with four rows, four chunks and 24 tokens of chunks.
  Step(*gpu, {{{4, 9, {1}, RowOutput::kLast}, {0, 9, {2, 3, 4}, RowOutput::kLast}}});
  EXPECT_TRUE(gpu->device_stats()->step_was_graph);
  EXPECT_EQ(SnapshotOf(*gpu, 1), before[1]);
  EXPECT_EQ(SnapshotOf(*gpu, 3), before[3]);
}

TEST_F(GpuRunnerTest, ALongTextIsScoredInParts) {
  config_.mixer = {.kind = MixerKind::kAftSimple};
  config_.n_layers = 1;
  options_.max_step_tokens = 300;  // more than 256, the most logits that are computed at a time
  const auto cpu = Cpu();
  const auto gpu = Gpu();
  const std::vector<TokenId> text = RandomText(297);
  const std::vector<TokenId> targets(text.begin() + 1, text.end());
  SamplingParams params;
  params.top_logprobs = 4;
  for (ModelRunner* runner : std::initializer_list<ModelRunner*>{cpu.get(), gpu.get()}) {
    Bind(*runner, 0, params);
    Bind(*runner, 1, Greedy());
  }
  const StepInput step = {
      {{0, 0, text, RowOutput::kScore, targets}, {1, 0, {1, 2, 3}, RowOutput::kLast}}};
  ExpectNear(Step(*gpu, step), Step(*cpu, step));
  EXPECT_EQ(tokens_, 297);
  EXPECT_EQ(other_tokens_, 0);  // the token of a score is its target
}

TEST_F(GpuRunnerTest, AForkOfABoundSlotThatHasRunNoStepIsBoundToo) {
  const auto gpu = Gpu();
  SamplingParams params = Warm(3);
  params.presence_penalty = 2.0F;
  Generate(*gpu, 0, RandomText(6), 4, params);  // leaves token counts in the slot
  Bind(*gpu, 0, params);
  Bind(*gpu, 1, ForkOf{0}, {params});
  const std::vector<TokenId> prompt = RandomText(5);
  const StepOutput forked = Step(*gpu, {{{1, 0, prompt, RowOutput::kLast}}});
  EXPECT_TRUE(Same(forked.sampled, Generate(*gpu, 2, prompt, 1, params)));
}

}  // namespace
}  // namespace aft
