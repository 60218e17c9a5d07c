#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> Prompt(int64_t size, TokenId first = 0) {
  std::vector<TokenId> prompt(static_cast<size_t>(size));
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = first + static_cast<TokenId>(i);
  return prompt;
}

std::vector<int64_t> RowSizes(const Step& step) {
  std::vector<int64_t> sizes;
  for (const StepRow& row : step.input.rows)
    sizes.push_back(static_cast<int64_t>(row.tokens.size()));
  return sizes;
}

// The clock stands still in these tests.
const Step* PlaceAndSchedule(ContinuousScheduler& scheduler) {
  scheduler.Place(TimePoint());
  return scheduler.Schedule();
}

// Runs a step, which retires before the next one is planned. Returns a step without rows if there
// is nothing to run.
const Step& RunStep(ContinuousScheduler& scheduler) {
  static const Step none;
  return PlaceAndSchedule(scheduler) == nullptr ? none : scheduler.Retire();
}

ContinuousScheduler::Options Options(int32_t slots, int64_t max_step_tokens,
                                     int max_in_flight = 1) {
  return {.slots = slots, .max_step_tokens = max_step_tokens, .max_in_flight = max_in_flight};
}

// Plays the model: every kLast row draws `token`.
void SampleAll(ContinuousScheduler& scheduler, const Step& step, TokenId token = 1) {
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.rows[i].output == RowOutput::kLast) scheduler.Sampled(*step.sequences[i], token);
  }
}

TEST(SlotPoolTest, HandsOutEverySlotOnceAndTakesThemBack) {
  SlotPool pool(3);
  std::set<int32_t> slots = {pool.Acquire(), pool.Acquire(), pool.Acquire()};
  EXPECT_THAT(slots, ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.free(), 0);
  pool.Release(1);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(pool.Acquire(), 1);
}

TEST(SlotPoolDeathTest, RefusesASlotThatIsNotInUse) {
  SlotPool pool(2);
  const int32_t slot = pool.Acquire();
  pool.Release(slot);
  EXPECT_DEATH(pool.Release(slot), "AFT_CHECK");
}

TEST(ContinuousSchedulerTest, FeedsAPromptInChunksAndSamplesFromTheLast) {
  ContinuousScheduler scheduler(Options(1, 4));
  Sequence sequence(Prompt(10));
  scheduler.Add(sequence, TimePoint());
  std::vector<std::vector<TokenId>> chunks;
  for (int i = 0; i < 3; ++i) {
    const Step& step = RunStep(scheduler);
    ASSERT_EQ(step.input.rows.size(), 1U);
    EXPECT_EQ(step.input.rows[0].first_position, 4 * i);
    EXPECT_EQ(step.input.rows[0].output, i == 2 ? RowOutput::kLast : RowOutput::kNone);
    chunks.push_back(step.input.rows[0].tokens);
  }
  EXPECT_THAT(chunks,
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7), ElementsAre(8, 9)));
  scheduler.Sampled(sequence, 42);
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(step.input.rows[0].tokens, ElementsAre(42));
  EXPECT_EQ(step.input.rows[0].first_position, 10);
  EXPECT_EQ(step.prompt_tokens, 0);
}

TEST(ContinuousSchedulerTest, ReadsEqualPromptsOneAfterTheOther) {
  ContinuousScheduler scheduler(Options(5, 23));
  std::deque<Sequence> sequences;
  for (int i = 0; i < 5; ++i) scheduler.Add(sequences.emplace_back(Prompt(10)), TimePoint());
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(RowSizes(step), ElementsAre(10, 10, 3));
  EXPECT_THAT(step.sequences, ElementsAre(&sequences[0], &sequences[1], &sequences[2]));
}

TEST(ContinuousSchedulerTest, TheShortestPromptsAreReadAlongsideTheOldest) {
  ContinuousScheduler scheduler(Options(4, 20));
  Sequence a(Prompt(1000)), b(Prompt(1000)), c(Prompt(8)), d(Prompt(3));
  for (Sequence* s : {&a, &b, &c, &d}) scheduler.Add(*s, TimePoint());
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(step.sequences, ElementsAre(&a, &c, &d));
  EXPECT_THAT(RowSizes(step), ElementsAre(10, 7, 3));
}

TEST(ContinuousSchedulerTest, ALongPromptEndsHoweverManyShortOnesCome) {
  ContinuousScheduler scheduler(Options(3, 20));
  const auto purpose = Sequence::Purpose::kRead;
  Sequence before(Prompt(30), purpose), a(Prompt(100), purpose);
  for (Sequence* s : {&before, &a}) scheduler.Add(*s, TimePoint());
  std::deque<Sequence> others;
  int steps = 0;
  while (a.prompt_left() > 0) {
    ASSERT_LE(++steps, 3 + 10);  // half of each
    scheduler.Add(others.emplace_back(Prompt(20), purpose), TimePoint());
    for (Sequence* s : RunStep(scheduler).sequences) {
      if (s->prompt_left() == 0) scheduler.Remove(*s);
    }
  }
}

TEST(ContinuousSchedulerTest, AClientsOldestPromptHasATokenOfEveryStepWhateverItsClass) {
  ContinuousScheduler scheduler(Options(3, 20));
  SequenceOwner batch;
  batch.service_class = ServiceClass::kBatch;
  Sequence a(Prompt(1000), Sequence::Purpose::kRead, 1, batch);
  scheduler.Add(a, TimePoint());
  RunStep(scheduler);
  Sequence b(Prompt(1000)), c(Prompt(6));
  for (Sequence* s : {&b, &c}) scheduler.Add(*s, TimePoint());
  EXPECT_THAT(RowSizes(RunStep(scheduler)), ElementsAre(1, 13, 6));
}

TEST(ContinuousSchedulerTest, EveryLiveSequenceAdvancesWithTheSmallestBudget) {
  ContinuousScheduler scheduler(Options(4, 5));
  std::deque<Sequence> sequences;
  for (int i = 0; i < 3; ++i) scheduler.Add(sequences.emplace_back(Prompt(1)), TimePoint());
  SampleAll(scheduler, RunStep(scheduler));
  scheduler.Add(sequences.emplace_back(Prompt(50)), TimePoint());
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(RowSizes(step), ElementsAre(1, 1, 1, 2));
  EXPECT_EQ(step.tokens, 5);
}

TEST(ContinuousSchedulerTest, AFreedSlotGoesToTheFirstInTheQueue) {
  ContinuousScheduler scheduler(Options(1, 8));
  Sequence a(Prompt(1)), b(Prompt(1)), c(Prompt(1));
  for (Sequence* s : {&a, &b, &c}) scheduler.Add(*s, TimePoint());
  EXPECT_THAT(RunStep(scheduler).sequences, ElementsAre(&a));
  scheduler.Remove(a);
  EXPECT_EQ(a.slot(), -1);
  scheduler.Remove(b);  // in the queue
  EXPECT_THAT(scheduler.Place(TimePoint()).started, ElementsAre(&c));
  RunStep(scheduler);
  scheduler.Remove(c);
  EXPECT_THAT(RunStep(scheduler).sequences, IsEmpty());
  EXPECT_EQ(scheduler.slots().free(), 1);
}

// Invariants 5 and 7 of server/README.md, for random arrivals, lengths and removals.
TEST(ContinuousSchedulerTest, KeepsItsInvariantsUnderRandomLoad) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto slots = static_cast<int32_t>(1 + random() % 6);
    const int64_t budget = slots + 1 + random() % 20;
    ContinuousScheduler scheduler(Options(slots, budget));
    std::deque<Sequence> storage;
    std::vector<Sequence*> inside;     // in arrival order
    std::vector<TokenId> first_token;  // prompts count up from it, indexed like storage
    const auto index_of = [&](const Sequence* s) {
      return static_cast<size_t>(
          std::find_if(storage.begin(), storage.end(), [&](const Sequence& x) { return &x == s; }) -
          storage.begin());
    };
    for (int turn = 0; turn < 150; ++turn) {
      for (uint64_t n = random() % 3; n > 0 && turn < 100; --n) {
        first_token.push_back(static_cast<TokenId>(random() % 1000));
        inside.push_back(&storage.emplace_back(Prompt(1 + random() % 40, first_token.back())));
        scheduler.Add(*inside.back(), TimePoint());
      }
      for (size_t i = 0; i < inside.size();) {
        if (random() % 16 == 0) {
          scheduler.Remove(*inside[i]);
          ASSERT_EQ(inside[i]->slot(), -1);
          inside.erase(inside.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }

      std::vector<int64_t> before;
      std::vector<bool> decoding;
      for (const Sequence* s : inside) {
        before.push_back(s->position());
        decoding.push_back(s->phase() == Sequence::Phase::kDecode);
      }
      const Step& step = RunStep(scheduler);

      // The oldest own the slots, the rest waits in order.
      const auto live = std::min(inside.size(), static_cast<size_t>(slots));
      ASSERT_EQ(scheduler.live(), static_cast<int32_t>(live));
      ASSERT_EQ(scheduler.waiting(), static_cast<int32_t>(inside.size() - live));
      ASSERT_EQ(scheduler.slots().used() + scheduler.slots().free(), slots);
      ASSERT_EQ(scheduler.slots().used(), static_cast<int32_t>(live));
      for (size_t i = 0; i < inside.size(); ++i) ASSERT_EQ(inside[i]->slot() >= 0, i < live);

      int64_t tokens = 0;
      int64_t unfed = 0;
      std::set<int32_t> used;
      for (size_t r = 0; r < step.sequences.size(); ++r) {
        const StepRow& row = step.input.rows[r];
        const Sequence& s = *step.sequences[r];
        const auto i =
            static_cast<size_t>(std::find(inside.begin(), inside.end(), &s) - inside.begin());
        ASSERT_LT(i, live);
        ASSERT_TRUE(used.insert(row.slot).second);
        ASSERT_EQ(row.slot, s.slot());
        ASSERT_GE(row.tokens.size(), 1U);
        ASSERT_EQ(row.first_position, before[i]);
        ASSERT_EQ(s.position(), before[i] + static_cast<int64_t>(row.tokens.size()));
        if (decoding[i]) {
          ASSERT_THAT(row.tokens, ElementsAre(static_cast<TokenId>(7 + s.slot())));
        } else {
          const TokenId first = first_token[index_of(&s)];
          ASSERT_EQ(row.tokens, Prompt(static_cast<int64_t>(row.tokens.size()),
                                       first + static_cast<TokenId>(before[i])));
        }
        ASSERT_EQ(row.output == RowOutput::kLast, s.prompt_left() == 0);
        tokens += static_cast<int64_t>(row.tokens.size());
      }
      // Every stream advances, and so does the oldest prompt.
      bool oldest = true;
      for (size_t i = 0; i < live; ++i) {
        const Sequence& s = *inside[i];
        if (decoding[i] || std::exchange(oldest, false)) {
          ASSERT_GT(s.position(), before[i]);
        }
        unfed += s.prompt_left();
      }
      ASSERT_LE(tokens, budget);
      ASSERT_EQ(step.tokens, tokens);
      if (unfed > 0) {
        ASSERT_EQ(tokens, budget);  // nothing is left idle
      }
      for (size_t r = 0; r < step.sequences.size(); ++r) {
        if (step.input.rows[r].output == RowOutput::kLast) {
          scheduler.Sampled(*step.sequences[r], static_cast<TokenId>(7 + step.input.rows[r].slot));
        }
      }
    }
    for (Sequence* s : inside) scheduler.Remove(*s);
    ASSERT_EQ(scheduler.slots().free(), slots);
    ASSERT_TRUE(RunStep(scheduler).empty());
  }
}

TEST(ContinuousSchedulerTest, ATextToScoreBringsItsTargetsChunkByChunk) {
  ContinuousScheduler scheduler(Options(2, 4));
  Sequence text(Prompt(6, 10), Sequence::Purpose::kScore);
  scheduler.Add(text, TimePoint());
  const Step& first = RunStep(scheduler);
  ASSERT_EQ(first.input.rows.size(), 1U);
  EXPECT_EQ(first.input.rows[0].output, RowOutput::kScore);
  EXPECT_THAT(first.input.rows[0].tokens, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(first.input.rows[0].targets, ElementsAre(11, 12, 13, 14));
  EXPECT_EQ(text.phase(), Sequence::Phase::kPrompt);
  const Step& last = RunStep(scheduler);
  EXPECT_EQ(last.input.rows[0].first_position, 4);
  EXPECT_THAT(last.input.rows[0].tokens, ElementsAre(14, 15));
  EXPECT_THAT(last.input.rows[0].targets, ElementsAre(15));  // nothing follows the end
  EXPECT_EQ(text.phase(), Sequence::Phase::kRead);
  scheduler.Remove(text);
  EXPECT_TRUE(RunStep(scheduler).empty());
  EXPECT_EQ(scheduler.slots().free(), 2);
}

TEST(ContinuousSchedulerTest, PlansAheadOfResults) {
  ContinuousScheduler scheduler(Options(2, 8, /*max_in_flight=*/2));
  Sequence a(Prompt(2));
  scheduler.Add(a, TimePoint());
  const Step* const prompt = PlaceAndSchedule(scheduler);
  EXPECT_EQ(prompt->input.rows[0].output, RowOutput::kLast);
  const Step* const decode = PlaceAndSchedule(scheduler);
  EXPECT_THAT(decode->input.rows[0].tokens, ElementsAre(kLastSampled));
  EXPECT_EQ(decode->input.rows[0].first_position, 2);
  EXPECT_EQ(&scheduler.Retire(), prompt);
  scheduler.Sampled(a, 5);  // the step in flight has consumed it
  EXPECT_THAT(PlaceAndSchedule(scheduler)->input.rows[0].tokens, ElementsAre(kLastSampled));
  EXPECT_EQ(&scheduler.Retire(), decode);
  scheduler.Sampled(a, 6);
  scheduler.Retire();
  scheduler.Sampled(a, 7);  // nothing in flight: the token is known when the next step is planned
  EXPECT_THAT(PlaceAndSchedule(scheduler)->input.rows[0].tokens, ElementsAre(7));
  scheduler.Retire();
}

TEST(ContinuousSchedulerTest, ASlotThatAStepNamesIsFreeWhenTheStepRetires) {
  ContinuousScheduler scheduler(Options(1, 8, /*max_in_flight=*/2));
  Sequence a(Prompt(2));
  Sequence b(Prompt(2));
  scheduler.Add(a, TimePoint());
  scheduler.Add(b, TimePoint());
  PlaceAndSchedule(scheduler);
  PlaceAndSchedule(scheduler);
  const Step& prompt = scheduler.Retire();
  EXPECT_THAT(prompt.sequences, ElementsAre(&a));
  scheduler.Remove(a);  // its first token was its last; it has a row in the step in flight
  EXPECT_EQ(scheduler.live(), 0);
  EXPECT_EQ(scheduler.slots().free(), 0);
  EXPECT_EQ(PlaceAndSchedule(scheduler), nullptr);  // b has no slot yet
  EXPECT_THAT(scheduler.Retire().sequences, ElementsAre(nullptr));
  EXPECT_EQ(scheduler.slots().free(), 1);
  EXPECT_THAT(scheduler.Place(TimePoint()).started, ElementsAre(&b));
}

TEST(ContinuousSchedulerTest, ASlotThatTwoStepsNameIsFreeWhenTheSecondRetires) {
  ContinuousScheduler scheduler(Options(1, 8, /*max_in_flight=*/2));
  Sequence a(Prompt(2));
  scheduler.Add(a, TimePoint());
  PlaceAndSchedule(scheduler);
  PlaceAndSchedule(scheduler);
  scheduler.Remove(a);
  EXPECT_THAT(scheduler.Retire().sequences, ElementsAre(nullptr));
  EXPECT_EQ(scheduler.slots().free(), 0);
  EXPECT_THAT(scheduler.Retire().sequences, ElementsAre(nullptr));
  EXPECT_EQ(scheduler.slots().free(), 1);
}

TEST(ContinuousSchedulerTest, PlansNoMoreOutputsThanASequenceMayHave) {
  ContinuousScheduler scheduler(Options(1, 8, /*max_in_flight=*/2));
  Sequence a(Prompt(2), Sequence::Purpose::kGenerate, /*max_outputs=*/2);
  scheduler.Add(a, TimePoint());
  PlaceAndSchedule(scheduler);
  PlaceAndSchedule(scheduler);
  scheduler.Retire();
  scheduler.Sampled(a, 1);
  EXPECT_EQ(PlaceAndSchedule(scheduler), nullptr);  // its second and last token is under way
  scheduler.Retire();
  scheduler.Sampled(a, 2);
  EXPECT_EQ(PlaceAndSchedule(scheduler), nullptr);
  scheduler.Remove(a);
  EXPECT_EQ(scheduler.slots().free(), 1);
}

}  // namespace
}  // namespace aft::server
