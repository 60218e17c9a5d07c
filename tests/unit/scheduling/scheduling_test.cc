#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"
#include "tests/unit/scheduling/scheduler_calls.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  EXPECT_EQ(sequence.prompt().capacity(), 0U);  // a decode does not keep it
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
  EXPECT_THAT(RowSizes(&step), ElementsAre(10, 10, 3));
  EXPECT_THAT(step.sequences, ElementsAre(&sequences[0], &sequences[1], &sequences[2]));
}

TEST(ContinuousSchedulerTest, TheShortestPromptsAreReadAlongsideTheOldest) {
  ContinuousScheduler scheduler(Options(4, 20));
  Sequence a(Prompt(1000)), b(Prompt(1000)), c(Prompt(8)), d(Prompt(3));
  for (Sequence* s : {&a, &b, &c, &d}) scheduler.Add(*s, TimePoint());
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(step.sequences, ElementsAre(&a, &c, &d));
  EXPECT_THAT(RowSizes(&step), ElementsAre(10, 7, 3));
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
  EXPECT_THAT(RowSizes(&RunStep(scheduler)), ElementsAre(1, 13, 6));
}

TEST(ContinuousSchedulerTest, EveryLiveSequenceAdvancesWithTheSmallestBudget) {
  ContinuousScheduler scheduler(Options(4, 5));
  std::deque<Sequence> sequences;
  for (int i = 0; i < 3; ++i) scheduler.Add(sequences.emplace_back(Prompt(1)), TimePoint());
  SampleAll(scheduler, RunStep(scheduler));
  scheduler.Add(sequences.emplace_back(Prompt(50)), TimePoint());
  const Step& step = RunStep(scheduler);
  EXPECT_THAT(RowSizes(&step), ElementsAre(1, 1, 1, 2));
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
  EXPECT_TRUE(RunStep(scheduler).sequences.empty());
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
