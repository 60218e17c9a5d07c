// The scheduler's support for prompts with a common prefix: cuts, late beginnings, sequences that
// are held back, and changes of class.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/fair_queue.h"
#include "tests/unit/scheduling/scheduler_calls.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Sequence::Owner OfClass(ServiceClass service_class) {
  return {.client = "a", .service_class = service_class};
}

TEST(CutTest, ARowEndsAtACutAndNoneFollowsUntilTheCutIsMoved) {
  ContinuousScheduler scheduler(Options(2, 16, 1));
  Sequence cut(Prompt(30));
  scheduler.Add(cut, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.CutAt(cut, 20);
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(16));
  scheduler.Retire();
  EXPECT_FALSE(ContinuousScheduler::IsAtCut(cut));
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(4));
  EXPECT_FALSE(ContinuousScheduler::IsAtCut(cut));
  EXPECT_EQ(cut.flights(), 1);
  scheduler.Retire();
  EXPECT_TRUE(ContinuousScheduler::IsAtCut(cut));
  EXPECT_EQ(cut.flights(), 0);
  EXPECT_EQ(scheduler.Schedule(), nullptr);
  scheduler.CutAt(cut, Sequence::kNoCut);
  EXPECT_FALSE(ContinuousScheduler::IsAtCut(cut));
  const Step* const last = scheduler.Schedule();
  EXPECT_THAT(RowSizes(last), ElementsAre(10));
  EXPECT_EQ(last->input.rows[0].first_position, 20);
  EXPECT_EQ(last->input.rows[0].output, RowOutput::kLast);
}

TEST(CutTest, WithTwoStepsInFlightASequenceAtItsCutSitsOutTheSecond) {
  ContinuousScheduler scheduler(Options(2, 16, 2));
  Sequence cut(Prompt(30));
  Sequence other(Prompt(100));
  scheduler.Add(cut, TimePoint());
  scheduler.Add(other, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.CutAt(cut, 5);
  // The other sequence gets the tokens that the cut leaves.
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(5, 11));
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(16));
  scheduler.Retire();
  EXPECT_TRUE(ContinuousScheduler::IsAtCut(cut));
  scheduler.CutAt(cut, 6);
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(1, 15));
}

TEST(CutTest, ACutMayBeAtTheSequencesPositionButNotBeyondItsPrompt) {
  ContinuousScheduler scheduler(Options(1, 16, 1));
  Sequence sequence(Prompt(30));
  scheduler.Add(sequence, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.Schedule();
  scheduler.CutAt(sequence, 16);
  scheduler.Retire();
  EXPECT_TRUE(ContinuousScheduler::IsAtCut(sequence));
  EXPECT_DEATH(scheduler.CutAt(sequence, 15), "AFT_CHECK");
  EXPECT_DEATH(scheduler.CutAt(sequence, 30), "AFT_CHECK");
  scheduler.CutAt(sequence, 29);
}

TEST(BeginAtTest, TokensBeforeTheBeginningAreNeitherReadNorCharged) {
  ContinuousScheduler scheduler(Options(2, 64, 1));
  Sequence late(Prompt(50));
  scheduler.Add(late, TimePoint());
  scheduler.Place(TimePoint(), [&](Sequence& sequence) {
    scheduler.BeginAt(sequence, 47);
    return true;
  });
  EXPECT_EQ(late.position(), 47);
  const Step* const step = scheduler.Schedule();
  EXPECT_EQ(step->prompt_tokens, 3);
  EXPECT_THAT(step->input.rows[0].tokens, ElementsAre(47, 48, 49));
  EXPECT_EQ(step->input.rows[0].first_position, 47);
  EXPECT_EQ(step->input.rows[0].output, RowOutput::kLast);
  EXPECT_THAT(late.prompt(), IsEmpty());
}

TEST(BeginAtTest, TheBeginningMayBeMovedBack) {
  ContinuousScheduler scheduler(Options(2, 64, 1));
  Sequence sequence(Prompt(50));
  scheduler.Add(sequence, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.BeginAt(sequence, 20);
  scheduler.BeginAt(sequence, 0);
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(50));
  EXPECT_DEATH(scheduler.BeginAt(sequence, 0), "AFT_CHECK");  // a step names it
}

TEST(HoldBackTest, ASequenceThatMayNotStartHasNoSlotAndOthersDo) {
  ContinuousScheduler scheduler(Options(1, 16, 1));
  Sequence held(Prompt(3));
  Sequence other(Prompt(4));
  scheduler.Add(held, TimePoint());
  scheduler.Add(other, TimePoint());
  std::vector<Sequence*> asked;
  scheduler.Place(TimePoint(), [&](Sequence& sequence) {
    asked.push_back(&sequence);
    return &sequence != &held;
  });
  EXPECT_THAT(asked, ElementsAre(&held, &other));
  EXPECT_EQ(held.phase(), Sequence::Phase::kHeldBack);
  EXPECT_EQ(held.slot(), -1);
  EXPECT_EQ(scheduler.waiting(), 0);
  EXPECT_EQ(other.slot(), 0);
  scheduler.Remove(other);
  // It is not considered until it is readmitted.
  EXPECT_THAT(scheduler.Place(TimePoint()).started, IsEmpty());
  scheduler.Readmit(held);
  EXPECT_THAT(scheduler.Place(TimePoint()).started, ElementsAre(&held));
  scheduler.Remove(held);
  EXPECT_EQ(scheduler.slots().free(), 1);
}

TEST(HoldBackTest, AReadmittedSequenceHasItsFormerPlace) {
  ContinuousScheduler scheduler(Options(1, 16, 1));
  Sequence first(Prompt(3));
  Sequence held(Prompt(4));
  Sequence last(Prompt(5));
  scheduler.Add(first, TimePoint());
  scheduler.Add(held, TimePoint());
  scheduler.Add(last, TimePoint());
  const auto order = [&] {
    std::vector<Sequence*> started;
    scheduler.Place(TimePoint(), [&](Sequence& sequence) {
      started.push_back(&sequence);
      return false;  // it is held back, and the next one is asked about
    });
    return started;
  };
  EXPECT_THAT(order(), ElementsAre(&first, &held, &last));
  scheduler.Readmit(last);
  scheduler.Readmit(held);
  scheduler.Readmit(first);
  EXPECT_EQ(scheduler.waiting(), 3);
  EXPECT_THAT(order(), ElementsAre(&first, &held, &last));
  EXPECT_DEATH(scheduler.Add(held, TimePoint()), "AFT_CHECK");
  scheduler.Readmit(held);
  EXPECT_DEATH(scheduler.Readmit(held), "AFT_CHECK");
  for (Sequence* sequence : {&first, &held, &last}) scheduler.Remove(*sequence);
  EXPECT_DEATH(scheduler.Readmit(first), "AFT_CHECK");
}

TEST(HoldBackTest, NothingIsParkedForASequenceThatMayNotStart) {
  ContinuousScheduler::Options options = Options(1, 16, 1);
  options.max_parked = 1;
  ContinuousScheduler scheduler(options);
  Sequence batch(Prompt(100), Sequence::Purpose::kGenerate, 1, OfClass(ServiceClass::kBatch));
  scheduler.Add(batch, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.Schedule();
  scheduler.Retire();
  Sequence urgent(Prompt(3), Sequence::Purpose::kGenerate, 1, OfClass(ServiceClass::kInteractive));
  scheduler.Add(urgent, TimePoint());
  const auto never = [](Sequence&) { return false; };
  EXPECT_THAT(scheduler.Place(TimePoint(), never).parked, IsEmpty());
  EXPECT_GE(batch.slot(), 0);
  EXPECT_THAT(RowSizes(scheduler.Schedule()), ElementsAre(16));
  scheduler.Retire();
  scheduler.Readmit(urgent);
  const Placement& placement = scheduler.Place(TimePoint());
  ASSERT_EQ(placement.parked.size(), 1U);
  EXPECT_THAT(placement.started, ElementsAre(&urgent));
  scheduler.Remove(urgent);
  // A parked sequence has started before, so `never` does not apply to it.
  EXPECT_THAT(scheduler.Place(TimePoint(), never).unparked, ElementsAre(&batch));
}

TEST(HoldBackTest, ASequenceThatIsHeldBackMayBeRemovedWithItsFollowers) {
  ContinuousScheduler scheduler(Options(4, 16, 1));
  Sequence leader(Prompt(3));
  Sequence follower({2}, Sequence::Purpose::kGenerate, 1, {}, {.first_position = 2});
  leader.Lead(follower);
  scheduler.Add(leader, TimePoint());
  scheduler.Add(follower, TimePoint());
  scheduler.Place(TimePoint(), [](Sequence&) { return false; });
  EXPECT_EQ(leader.phase(), Sequence::Phase::kHeldBack);
  EXPECT_EQ(scheduler.waiting(), 1);  // the follower
  scheduler.Remove(leader);
  EXPECT_THAT(scheduler.Place(TimePoint()).abandoned, ElementsAre(&follower));
  EXPECT_EQ(scheduler.waiting(), 0);
  EXPECT_EQ(scheduler.slots().free(), 4);
}

TEST(SetClassTest, AnItemGetsThePlaceOfItsArrivalInTheNewClass) {
  FairQueue queue;
  FairItem one("a", 1, ServiceClass::kNormal);
  FairItem two("a", 1, ServiceClass::kBatch);
  FairItem three("a", 1, ServiceClass::kNormal);
  FairItem other("b", 1, ServiceClass::kNormal);
  for (FairItem* item : {&one, &two, &three}) queue.Push(*item, TimePoint());
  const auto order = [&] {
    std::vector<FairItem*> served;
    while (FairItem* const next = queue.Next(TimePoint())) {
      queue.Serve(*next, TimePoint());
      served.push_back(next);
    }
    return served;
  };
  queue.SetClass(two, ServiceClass::kNormal);
  EXPECT_EQ(two.service_class(), ServiceClass::kNormal);
  EXPECT_THAT(order(), ElementsAre(&one, &two, &three));
  EXPECT_EQ(queue.waiting(), 0U);
  // An item that is being served, and comes back.
  queue.SetClass(two, ServiceClass::kInteractive);
  queue.Push(other, TimePoint());
  queue.PushFront(two, TimePoint());
  EXPECT_THAT(order(), ElementsAre(&two, &other));
  queue.SetClass(two, ServiceClass::kBatch);
  for (FairItem* item : {&one, &two, &three, &other}) queue.Leave(*item);
  queue.SetClass(two, ServiceClass::kNormal);  // an item that is not in a queue
  EXPECT_EQ(two.service_class(), ServiceClass::kNormal);
}

TEST(SetClassTest, APromptIsReadByTheClassThatItHasNow) {
  ContinuousScheduler scheduler(Options(2, 16, 1));
  Sequence first(Prompt(100), Sequence::Purpose::kGenerate, 1, OfClass(ServiceClass::kNormal));
  Sequence second(Prompt(100), Sequence::Purpose::kGenerate, 1, OfClass(ServiceClass::kBatch));
  scheduler.Add(first, TimePoint());
  scheduler.Add(second, TimePoint());
  scheduler.Place(TimePoint());
  scheduler.SetClass(second, ServiceClass::kInteractive);
  const Step* const step = scheduler.Schedule();
  EXPECT_THAT(step->sequences, ElementsAre(&first, &second));
  EXPECT_EQ(step->input.rows[0].tokens.size(), 1U);
  EXPECT_EQ(step->input.rows[1].tokens.size(), 15U);
}

}  // namespace
}  // namespace aft::server
