// Which sequences have slots: quotas, reserved slots, parking.

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/scheduling/named_sequence.h"
#include "tests/unit/scheduling/scheduler_calls.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class PlacementTest : public testing::Test {
 protected:
  // A scheduler whose steps all retire before the next, as on a CPU.
  void Start(ContinuousScheduler::Options options) {
    options.max_step_tokens = std::max<int64_t>(options.max_step_tokens, 1000);
    options.age = kAge;
    scheduler_ = std::make_unique<ContinuousScheduler>(options);
  }

  // The first letter of `name` is the client.
  NamedSequence& Add(const std::string& name, ServiceClass service_class = kNormal,
                     int32_t max_slots = 0) {
    NamedSequence& added = sequences_.emplace_back(
        name,
        Sequence::Owner{
            .client = name.substr(0, 1), .max_slots = max_slots, .service_class = service_class},
        std::vector<TokenId>{1, 2});
    scheduler_->Add(added, clock_.Now());
    return added;
  }

  // Hands out slots, and returns the names of the sequences that were parked.
  std::vector<std::string> Parked() {
    std::vector<std::string> names;
    for (const auto& [sequence, slot] : scheduler_->Place(clock_.Now()).parked) {
      names.push_back(NameOf(sequence));
    }
    return names;
  }
  std::vector<std::string> Started() { return Names(scheduler_->Place(clock_.Now()).started); }
  std::vector<std::string> Unparked() { return Names(scheduler_->Place(clock_.Now()).unparked); }

  // Runs this number of steps. Every live sequence has a row in each.
  void Run(int64_t steps = 1) {
    for (int64_t i = 0; i < steps; ++i) {
      if (scheduler_->Schedule() == nullptr) return;
      SampleAll(*scheduler_, scheduler_->Retire(), 7);
    }
  }

  ManualClock clock_;
  std::unique_ptr<ContinuousScheduler> scheduler_;
  std::deque<NamedSequence> sequences_;
};

TEST_F(PlacementTest, FreeSlotsGoByClassThenByClient) {
  Start({.slots = 3});
  Add("a1", kBatch);
  Add("a2");
  Add("a3");
  Add("b1");
  Add("c1", kInteractive);
  EXPECT_THAT(Started(), ElementsAre("c1", "a2", "a3"));
  Run();  // a has had 4 tokens now
  scheduler_->Remove(sequences_[4]);
  EXPECT_THAT(Started(), ElementsAre("b1"));
}

TEST_F(PlacementTest, ALoneClientMayHaveAllSlots) {
  Start({.slots = 4, .max_client_slots = 2, .reserved_slots = 1, .max_parked = 4});
  for (int i = 0; i < 5; ++i) Add(absl::StrCat("a", i));
  EXPECT_THAT(Started(), SizeIs(4));
  Run();
  EXPECT_THAT(Parked(), IsEmpty());  // not for the fifth of the same client
  clock_.Advance(9 * kAge);
  EXPECT_THAT(Parked(), IsEmpty());  // nor when the fifth has waited
}

TEST_F(PlacementTest, SequencesBeyondTheQuotaAreParkedLatestFirst) {
  Start({.slots = 4, .max_client_slots = 2, .max_parked = 4});
  for (int i = 0; i < 4; ++i) Add(absl::StrCat("a", i));
  EXPECT_THAT(Started(), SizeIs(4));
  Add("b1");
  EXPECT_THAT(Parked(), IsEmpty());  // nothing has had a step yet
  Run();
  EXPECT_THAT(Parked(), ElementsAre("a3"));
  Add("b2");
  Run();
  EXPECT_THAT(Parked(), ElementsAre("a2"));
  Add("b3");
  Add("c1");
  Run();
  EXPECT_THAT(Parked(), IsEmpty());  // a and b are within their quotas, so nothing is parked
  EXPECT_EQ(scheduler_->parked(), 2);
  EXPECT_EQ(scheduler_->waiting(), 2);
}

TEST_F(PlacementTest, AParkedSequenceComesBackBeforeItsClientsOthersAndKeepsItsPlace) {
  Start({.slots = 1, .max_parked = 1});
  NamedSequence& a = Add("a1", kBatch);
  Add("a2", kBatch);
  scheduler_->Place(clock_.Now());
  Run(5);
  const int64_t position = a.position();
  NamedSequence& b = Add("b1", kInteractive);
  const Placement& placement = scheduler_->Place(clock_.Now());
  ASSERT_THAT(placement.parked, SizeIs(1));
  EXPECT_EQ(placement.parked[0].sequence, &a);
  EXPECT_EQ(placement.parked[0].slot, b.slot());
  EXPECT_THAT(Names(placement.started), ElementsAre("b1"));
  EXPECT_EQ(a.phase(), Sequence::Phase::kParked);
  EXPECT_EQ(a.slot(), -1);
  Run();
  scheduler_->Remove(b);
  EXPECT_THAT(Unparked(), ElementsAre("a1"));
  EXPECT_EQ(scheduler_->parked(), 0);
  EXPECT_EQ(a.position(), position);
  const Step* const step = scheduler_->Schedule();
  ASSERT_NE(step, nullptr);
  EXPECT_THAT(step->input.rows[0].tokens, ElementsAre(7));  // the token that it had sampled
  EXPECT_EQ(step->input.rows[0].first_position, position);
  scheduler_->Retire();
}

TEST_F(PlacementTest, APromptIsParkedInTheMiddle) {
  Start({.slots = 1, .max_step_tokens = 1000, .max_parked = 1});
  NamedSequence& a = sequences_.emplace_back(
      "a1", Sequence::Owner{.client = "a", .service_class = kBatch}, std::vector<TokenId>(1500, 3));
  scheduler_->Add(a, clock_.Now());
  scheduler_->Place(clock_.Now());
  Run();
  NamedSequence& b = Add("b1");
  EXPECT_THAT(Parked(), ElementsAre("a1"));
  scheduler_->Remove(b);
  EXPECT_THAT(Unparked(), ElementsAre("a1"));
  EXPECT_EQ(a.phase(), Sequence::Phase::kPrompt);
  const Step* const step = scheduler_->Schedule();
  EXPECT_EQ(step->input.rows[0].first_position, 1000);
  EXPECT_THAT(step->input.rows[0].tokens, SizeIs(500));
  scheduler_->Retire();
}

TEST_F(PlacementTest, AnUnparkedSequenceHasItsQuantumBeforeItIsParkedAgain) {
  Start({.slots = 1, .max_parked = 1});
  Add("a1", kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  NamedSequence& b = Add("b1");
  EXPECT_THAT(Parked(), ElementsAre("a1"));
  scheduler_->Remove(b);
  EXPECT_THAT(Unparked(), ElementsAre("a1"));
  Add("b2");
  for (int64_t row = 0; row < ContinuousScheduler::kQuantum; ++row) {
    EXPECT_THAT(Parked(), IsEmpty()) << row;
    Run();
  }
  EXPECT_THAT(Parked(), ElementsAre("a1"));
}

TEST_F(PlacementTest, BatchWorkIsNeverParkedForBatchWork) {
  Start({.slots = 2, .max_client_slots = 1, .max_parked = 2});
  Add("a1", kBatch);
  Add("a2");
  scheduler_->Place(clock_.Now());
  Run();
  Add("a3");  // beyond a's quota
  Add("b1", kBatch);
  EXPECT_THAT(Parked(), IsEmpty());
}

TEST_F(PlacementTest, BatchWorkThatHasWaitedReplacesThatOfAClientThatHadMore) {
  Start({.slots = 2, .max_parked = 2});
  Add("a1", kBatch);
  Add("a2", kBatch);
  Add("a3", kBatch);
  scheduler_->Place(clock_.Now());
  NamedSequence& b = Add("b1", kBatch);
  Run(3);
  clock_.Advance(kAge - Duration(1));
  EXPECT_THAT(Parked(), IsEmpty());
  clock_.Advance(Duration(1));
  EXPECT_THAT(Parked(), ElementsAre("a2"));
  EXPECT_GE(b.slot(), 0);
  Run();
  clock_.Advance(kAge);
  EXPECT_THAT(Parked(), IsEmpty());  // b has still had less than a
}

TEST_F(PlacementTest, ASequenceThatWaitsForItsOwnClientDoesNotDelayOtherClients) {
  Start({.slots = 2, .max_parked = 2});
  Add("a1", kBatch);
  Add("a2", kBatch);
  Add("a3", kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  clock_.Advance(2 * FairQueue::kOverdueAges * kAge);
  Add("b1", kBatch);
  Run();
  EXPECT_THAT(Parked(), IsEmpty());
  clock_.Advance(kAge);
  EXPECT_THAT(Parked(), ElementsAre("a2"));
}

TEST_F(PlacementTest, ASequenceMayBeParkedForAMoreUrgentOneOfItsClient) {
  Start({.slots = 2, .max_client_slots = 1, .max_parked = 2});
  Add("a1", kBatch);
  Add("a2", kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  Add("a3", kInteractive);
  Add("a4", kInteractive);  // beyond the quota
  EXPECT_THAT(Parked(), ElementsAre("a2"));
}

TEST_F(PlacementTest, TheClientThatHasHadTheMostIsParkedFirst) {
  Start({.slots = 3, .max_parked = 3});
  Add("a1", kBatch);
  Add("a2", kBatch);
  Add("b1", kBatch);
  scheduler_->Place(clock_.Now());
  Add("z1", kBatch);  // a sequence waits, so service is counted
  Run();
  Add("c1");
  EXPECT_THAT(Parked(), ElementsAre("a2"));
  Run();
  Add("c2");
  EXPECT_THAT(Parked(), ElementsAre("a1"));
}

TEST_F(PlacementTest, NoMoreAreParkedThanThereIsRoomFor) {
  Start({.slots = 3, .max_parked = 1});
  for (const char* name : {"a1", "a2", "a3"}) Add(name, kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  Add("b1");
  Add("b2");
  EXPECT_THAT(Parked(), ElementsAre("a3"));
  EXPECT_THAT(Parked(), IsEmpty());
  scheduler_->Remove(sequences_[2]);  // the parked one
  EXPECT_EQ(scheduler_->parked(), 0);
  EXPECT_THAT(Parked(), ElementsAre("a2"));
  Start({.slots = 1, .max_parked = 0});
  Add("a4", kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  Add("b3", kInteractive);
  EXPECT_THAT(Parked(), IsEmpty());
}

TEST_F(PlacementTest, OtherClassesMayUseReservedSlotsUntilAnInteractiveSequenceComes) {
  Start({.slots = 3, .reserved_slots = 1, .max_parked = 3});
  for (const char* name : {"a1", "b1", "c1"}) Add(name);
  EXPECT_THAT(Started(), SizeIs(3));
  Run();
  Add("d1");
  EXPECT_THAT(Parked(), IsEmpty());
  Add("e1", kInteractive);
  EXPECT_THAT(Parked(), ElementsAre("c1"));
  Run();
  Add("e2", kInteractive);
  EXPECT_THAT(Parked(), IsEmpty());  // the others do not use the reserved slot
  scheduler_->Remove(sequences_[0]);
  Run();
  EXPECT_THAT(Started(), ElementsAre("e2"));
}

TEST_F(PlacementTest, ALaterSequenceBecomesFirmWhenAnEarlierOneEnds) {
  Start({.slots = 2, .max_client_slots = 1, .max_parked = 2});
  Add("a1");
  Add("a2");
  scheduler_->Place(clock_.Now());
  Run();
  scheduler_->Remove(sequences_[0]);
  Add("a3");
  scheduler_->Place(clock_.Now());
  Run();
  Add("b1");
  EXPECT_THAT(Parked(), ElementsAre("a3"));
}

TEST_F(PlacementTest, AClientsOwnQuotaCounts) {
  Start({.slots = 3, .max_client_slots = 1, .max_parked = 3});
  for (const char* name : {"a1", "a2", "a3"}) Add(name, kNormal, /*max_slots=*/2);
  scheduler_->Place(clock_.Now());
  Run();
  Add("b1");
  Add("b2");
  EXPECT_THAT(Parked(), ElementsAre("a3"));
  Run();
  EXPECT_THAT(Parked(), IsEmpty());
}

TEST_F(PlacementTest, StrictQuotasLeaveSlotsFree) {
  Start({.slots = 4, .max_client_slots = 2, .reserved_slots = 1, .strict_quotas = true});
  for (int i = 0; i < 4; ++i) Add(absl::StrCat("a", i));
  EXPECT_THAT(Started(), ElementsAre("a0", "a1"));
  Add("b1", kBatch);
  Add("b2", kBatch);
  EXPECT_THAT(Started(), ElementsAre("b1"));  // the fourth slot is for interactive ones
  Run();
  EXPECT_THAT(Started(), IsEmpty());
  Add("b3", kInteractive);
  EXPECT_THAT(Started(), ElementsAre("b3"));
  scheduler_->Remove(sequences_[0]);
  EXPECT_THAT(Started(), ElementsAre("a2"));
}

TEST_F(PlacementTest, StrictQuotasLetAClientsUrgentWorkParkItsOwn) {
  Start({.slots = 4, .max_client_slots = 2, .strict_quotas = true, .max_parked = 4});
  for (const char* name : {"a1", "a2", "b1"}) Add(name, kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  Add("a3");
  EXPECT_THAT(Parked(), ElementsAre("a2"));
}

TEST_F(PlacementTest, StrictQuotasDoNotCountASequenceThatWasJustParked) {
  Start({.slots = 4,
         .max_client_slots = 3,
         .reserved_slots = 1,
         .strict_quotas = true,
         .max_parked = 4});
  for (const char* name : {"a1", "a2", "a3"}) Add(name, kBatch);
  scheduler_->Place(clock_.Now());
  Run();
  Add("b1", kBatch);
  EXPECT_THAT(Started(), IsEmpty());  // the fourth slot is for interactive ones
  Add("a4", kInteractive);
  EXPECT_THAT(Started(), ElementsAre("a4", "b1"));
  EXPECT_EQ(scheduler_->parked(), 1);
}

TEST_F(PlacementTest, ASequenceInAStepInFlightSitsOutAStepBeforeItIsParked) {
  Start({.slots = 2, .max_in_flight = 2, .max_parked = 2});
  NamedSequence& a = Add("a1", kBatch);
  NamedSequence& b = Add("b1");
  scheduler_->Place(clock_.Now());
  scheduler_->Schedule();
  NamedSequence& c = Add("c1", kInteractive);
  EXPECT_THAT(Parked(), IsEmpty());
  const Step* const second = scheduler_->Schedule();
  EXPECT_THAT(second->sequences, ElementsAre(&b));
  const Step& first = scheduler_->Retire();
  EXPECT_THAT(first.sequences, UnorderedElementsAre(&a, &b));
  scheduler_->Sampled(a, 7);
  scheduler_->Sampled(b, 7);
  const Placement& placement = scheduler_->Place(clock_.Now());
  ASSERT_THAT(placement.parked, SizeIs(1));
  EXPECT_EQ(placement.parked[0].sequence, &a);
  EXPECT_THAT(placement.started, ElementsAre(&c));
  EXPECT_THAT(scheduler_->Schedule()->sequences, UnorderedElementsAre(&b, &c));
}

// Either sequence may be parked, and the step in flight names only one of them.
TEST_F(PlacementTest, ASequenceThatNoStepInFlightNamesIsParkedFirst) {
  Start({.slots = 2, .max_in_flight = 2, .max_parked = 2});
  NamedSequence& a = Add("a1", kBatch);
  Add("a2", kBatch);  // came later, so it would be parked if no step named it
  scheduler_->Place(clock_.Now());
  Run();
  ContinuousScheduler::Pause(a);
  ASSERT_THAT(Names(scheduler_->Schedule()->sequences), ElementsAre("a2"));
  Add("c1", kInteractive);
  EXPECT_THAT(Parked(), ElementsAre("a1"));

  Start({.slots = 2, .max_in_flight = 2, .max_parked = 2});
  Add("a3", kBatch);  // its client has more service, so it would be parked if no step named it
  NamedSequence& b = Add("b1", kBatch);
  scheduler_->Place(clock_.Now());
  Add("z1", kBatch);  // a sequence waits, so service is counted
  Run();
  for (int i = 0; i < 3; ++i) {
    ContinuousScheduler::Pause(b);
    Run();
  }
  ContinuousScheduler::Pause(b);
  ASSERT_THAT(Names(scheduler_->Schedule()->sequences), ElementsAre("a3"));
  Add("c2", kInteractive);
  EXPECT_THAT(Parked(), ElementsAre("b1"));
}

TEST_F(PlacementTest, ASequenceThatSatOutContinuesWhenItsSlotIsNotNeeded) {
  Start({.slots = 1, .max_in_flight = 2, .max_parked = 1});
  NamedSequence& a = Add("a1", kBatch);
  scheduler_->Place(clock_.Now());
  scheduler_->Schedule();
  NamedSequence& b = Add("b1");
  EXPECT_THAT(Parked(), IsEmpty());
  EXPECT_EQ(scheduler_->Schedule(), nullptr);
  scheduler_->Remove(b);
  scheduler_->Retire();
  scheduler_->Sampled(a, 7);
  EXPECT_THAT(Parked(), IsEmpty());
  EXPECT_THAT(scheduler_->Schedule()->sequences, ElementsAre(&a));
}

TEST_F(PlacementTest, ASequenceWhoseLastTokenIsUnderWayIsNotParked) {
  Start({.slots = 1, .max_in_flight = 2, .max_parked = 1});
  Sequence last({1}, Sequence::Purpose::kGenerate, /*max_outputs=*/1,
                {.client = "a", .service_class = kBatch});
  scheduler_->Add(last, clock_.Now());
  scheduler_->Place(clock_.Now());
  scheduler_->Schedule();
  Add("b1");
  EXPECT_THAT(Parked(), IsEmpty());
  scheduler_->Retire();
  scheduler_->Sampled(last, 7);
  EXPECT_THAT(Parked(), IsEmpty());
  scheduler_->Remove(last);
  EXPECT_THAT(Started(), ElementsAre("b1"));
}

TEST_F(PlacementTest, PromptsKeepToTheBudgetAlongsideDecodesAndBetterClassesReadFirst) {
  Start({.slots = 4});
  Add("a1");
  scheduler_->Place(clock_.Now());
  Run();
  const auto add_prompt = [&](const std::string& name, ServiceClass service_class) {
    NamedSequence& added = sequences_.emplace_back(
        name, Sequence::Owner{.client = name, .service_class = service_class},
        std::vector<TokenId>(1000, 3));
    scheduler_->Add(added, clock_.Now());
    return &added;
  };
  Sequence* const b = add_prompt("b", kBatch);
  Sequence* const c = add_prompt("c", kNormal);
  Sequence* const d = add_prompt("d", kInteractive);
  scheduler_->Place(clock_.Now());
  const auto rows = [&](int64_t budget) {
    std::map<const Sequence*, size_t> sizes;
    const Step* const step = scheduler_->Schedule(budget);
    for (size_t i = 0; i < step->sequences.size(); ++i) {
      sizes[step->sequences[i]] = step->input.rows[i].tokens.size();
    }
    scheduler_->Retire();
    scheduler_->Sampled(sequences_[0], 7);
    return std::vector<size_t>{sizes[d], sizes[c], sizes[b], sizes[&sequences_[0]]};
  };
  EXPECT_THAT(rows(20), ElementsAre(18, 1, 1, 1));
  EXPECT_THAT(rows(0), ElementsAre(2, 1, 1, 1));
  scheduler_->Remove(sequences_[0]);
  EXPECT_EQ(scheduler_->Schedule(20)->prompt_tokens, 1000);  // no stream waits for a token
}

}  // namespace
}  // namespace aft::server
