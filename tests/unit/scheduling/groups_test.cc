// Groups: sequences that wait for slots as one item and read their common prompt once.

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
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

class GroupsTest : public testing::Test {
 protected:
  void Start(ContinuousScheduler::Options options) {
    options.max_step_tokens = std::max<int64_t>(options.max_step_tokens, options.slots + 1);
    options.age = kAge;
    scheduler_ = std::make_unique<ContinuousScheduler>(options);
  }

  // Adds a single sequence, or a group with the names "a1", "a1+1", "a1+2", ... The first letter of
  // `name` is the client.
  NamedSequence& Add(const std::string& name, ServiceClass service_class = kNormal, int size = 1,
                     std::vector<TokenId> prompt = {1, 2}, int32_t max_slots = 0) {
    const Sequence::Owner owner = {
        .client = name.substr(0, 1), .max_slots = max_slots, .service_class = service_class};
    NamedSequence& leader = sequences_.emplace_back(name, owner, prompt);
    const auto last = static_cast<int64_t>(prompt.size()) - 1;
    std::vector<NamedSequence*> followers;
    for (int i = 1; i < size; ++i) {
      followers.push_back(&sequences_.emplace_back(absl::StrCat(name, "+", i), owner,
                                                   std::vector<TokenId>{prompt.back()},
                                                   SequenceTurn{.first_position = last}));
      leader.Lead(*followers.back());
    }
    scheduler_->Add(leader, clock_.Now());
    for (NamedSequence* follower : followers) scheduler_->Add(*follower, clock_.Now());
    return leader;
  }
  NamedSequence& Find(const std::string& name) {
    return *std::find_if(sequences_.begin(), sequences_.end(),
                         [&](const NamedSequence& sequence) { return sequence.name == name; });
  }
  void Remove(const std::string& name) { scheduler_->Remove(Find(name)); }

  // Hands out slots, and returns the names of the sequences that got their first slot.
  std::vector<std::string> Started() {
    placement_ = scheduler_->Place(clock_.Now());
    std::vector<std::string> names = Names(placement_.started);
    for (const std::string& name : Names(placement_.following)) names.push_back(name);
    return names;
  }
  std::vector<std::string> Parked() const {
    std::vector<std::string> names;
    for (const auto& [sequence, slot] : placement_.parked) names.push_back(NameOf(sequence));
    return names;
  }
  std::vector<std::string> Forked() const {
    std::vector<std::string> names;
    for (const auto& [leader, sequence] : placement_.forked) {
      names.push_back(absl::StrCat(NameOf(leader), ">", NameOf(sequence)));
    }
    return names;
  }

  struct Row {
    std::string name;
    std::vector<TokenId> tokens;
    friend bool operator==(const Row&, const Row&) = default;
    friend void PrintTo(const Row& row, std::ostream* out) {
      *out << row.name << ": " << testing::PrintToString(row.tokens);
    }
  };
  std::vector<Row> Schedule() {
    std::vector<Row> rows;
    const Step* const step = scheduler_->Schedule();
    for (size_t i = 0; step != nullptr && i < step->sequences.size(); ++i) {
      rows.push_back({NameOf(step->sequences[i]), step->input.rows[i].tokens});
    }
    return rows;
  }
  void Retire() { SampleAll(*scheduler_, scheduler_->Retire(), 7); }
  // Runs a step and returns its rows.
  std::vector<Row> Run() {
    const std::vector<Row> rows = Schedule();
    if (!rows.empty()) Retire();
    return rows;
  }
  // Runs steps until all prompts have been read.
  void RunPrompts() {
    for (int i = 0; i < 4; ++i) {
      Started();
      Run();
    }
  }

  ManualClock clock_;
  std::unique_ptr<ContinuousScheduler> scheduler_;
  Placement placement_;
  std::deque<NamedSequence> sequences_;
};

TEST_F(GroupsTest, ThePromptIsReadOnceExceptForItsLastToken) {
  Start({.slots = 3, .max_step_tokens = 4});
  Add("a1", kNormal, 3, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2"));
  EXPECT_THAT(Forked(), IsEmpty());
  EXPECT_EQ(scheduler_->slots().free(), 0);
  EXPECT_THAT(Run(), ElementsAre(Row{"a1", {1, 2, 3, 4}}));
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_THAT(Forked(), IsEmpty());
  EXPECT_THAT(Run(), ElementsAre(Row{"a1", {5}}));
  Started();
  EXPECT_THAT(Forked(), ElementsAre("a1>a1+1", "a1>a1+2"));
  EXPECT_THAT(Run(), UnorderedElementsAre(Row{"a1", {6}}, Row{"a1+1", {6}}, Row{"a1+2", {6}}));
  Started();
  EXPECT_THAT(Forked(), IsEmpty());
  EXPECT_THAT(Run(), UnorderedElementsAre(Row{"a1", {7}}, Row{"a1+1", {7}}, Row{"a1+2", {7}}));
}

TEST_F(GroupsTest, APromptOfOneTokenNeedsNoReading) {
  Start({.slots = 2});
  Add("a1", kNormal, 2, {5});
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1"));
  EXPECT_THAT(Forked(), ElementsAre("a1>a1+1"));
}

TEST_F(GroupsTest, TheLeaderSitsOutUntilNoStepNamesItsSlot) {
  Start({.slots = 3, .max_in_flight = 2});
  Add("b1", kNormal, 1, {9});
  Add("a1", kNormal, 2, {1, 2, 3});
  Started();
  EXPECT_THAT(Schedule(), UnorderedElementsAre(Row{"b1", {9}}, Row{"a1", {1, 2}}));
  Started();
  EXPECT_THAT(Forked(), IsEmpty());
  EXPECT_THAT(Schedule(), ElementsAre(Row{"b1", {kLastSampled}}));
  Retire();
  Started();
  EXPECT_THAT(Forked(), ElementsAre("a1>a1+1"));
}

TEST_F(GroupsTest, AGroupGetsAllOfItsSlotsOrNone) {
  Start({.slots = 4});
  for (const char* name : {"b1", "b2", "b3"}) Add(name);
  Started();
  RunPrompts();
  Add("a1", kNormal, 3);
  Add("c1");
  Add("b4");
  EXPECT_EQ(scheduler_->waiting(), 5);
  // It is the group's turn, and one slot is free. The slot is kept for the group.
  EXPECT_THAT(Started(), IsEmpty());
  Remove("b2");
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_EQ(scheduler_->slots().free(), 2);
  // A sequence of a better class still goes first.
  Add("d1", kInteractive);
  EXPECT_THAT(Started(), ElementsAre("d1"));
  Remove("b1");
  EXPECT_THAT(Started(), IsEmpty());
  Remove("b3");
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2"));
  EXPECT_EQ(scheduler_->waiting(), 2);
}

TEST_F(GroupsTest, SingleSequencesDoNotOvertakeAGroupForEver) {
  Start({.slots = 4, .max_parked = 4});
  for (int i = 0; i < 4; ++i) Add(absl::StrCat("b", i));
  Started();
  NamedSequence& group = Add("a1", kBatch, 4);
  // A sequence of a better class comes in each step. Every ten steps, one ends.
  int next = 4;
  for (int step = 0; group.slot() < 0 && step < 10'000; ++step) {
    Add(absl::StrCat("b", next));
    if (step % 10 == 0) Remove(absl::StrCat("b", next - 4));
    if (step % 10 == 0) ++next;
    clock_.Advance(seconds(1));
    Started();
    Run();
  }
  // By then the group counts as interactive and is overdue. It has waited only for the sequences
  // before it.
  EXPECT_GE(group.slot(), 0);
}

// Otherwise a client could keep slots from all others with groups that compute few tokens.
TEST_F(GroupsTest, AClientPaysForTheSlotsThatStayFreeForItsGroup) {
  for (const bool starts : {true, false}) {
    Start({.slots = 4});
    for (const char* name : {"c1", "c2", "c3", "c4"}) Add(name);
    Started();
    RunPrompts();
    Add("a1", kNormal, 4);
    Add("a2", kNormal, 4);
    Add("c5");
    for (const char* name : {"c1", "c2", "c3"}) Remove(name);
    // Three slots stay free for 100 steps, in which the other client gets 100 tokens.
    for (int i = 0; i < 100; ++i) {
      EXPECT_THAT(Started(), IsEmpty());
      Run();
    }
    if (starts) {
      Remove("c4");
      EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2", "a1+3"));
      RunPrompts();
      for (const char* name : {"a1", "a1+1", "a1+2", "a1+3"}) Remove(name);
    } else {
      Remove("a1");
      Remove("c4");
    }
    EXPECT_THAT(Started(), ElementsAre("c5"));
    for (const NamedSequence& sequence : sequences_) Remove(sequence.name);
    sequences_.clear();
  }
}

TEST_F(GroupsTest, SlotsThatNoOtherClientWaitsForCostAGroupNothing) {
  Start({.slots = 4});
  for (const char* name : {"c1", "c2", "c3", "c4"}) Add(name);
  Started();
  RunPrompts();
  Add("a1", kNormal, 4);
  Add("a2", kNormal, 4);
  for (const char* name : {"c1", "c2", "c3"}) Remove(name);
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(Started(), IsEmpty());
    Run();
  }
  Add("c5");
  Remove("c4");
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2", "a1+3"));
  RunPrompts();
  for (const char* name : {"a1", "a1+1", "a1+2", "a1+3"}) Remove(name);
  EXPECT_THAT(Started(), ElementsAre("a2", "a2+1", "a2+2", "a2+3"));
}

TEST_F(GroupsTest, ParkingMakesRoomForAWholeGroupOrNotAtAll) {
  Start({.slots = 4, .max_parked = 4});
  for (const char* name : {"b1", "b2", "b3"}) Add(name, kBatch);
  Add("c1");
  Started();
  RunPrompts();
  Add("a1", kNormal, 4);
  EXPECT_THAT(Started(), IsEmpty());  // c1 stays
  EXPECT_THAT(Parked(), IsEmpty());
  EXPECT_THAT(Run(), SizeIs(4));
  Remove("c1");
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2", "a1+3"));
  EXPECT_THAT(Parked(), ElementsAre("b3", "b2", "b1"));
  EXPECT_EQ(scheduler_->parked(), 3);
}

TEST_F(GroupsTest, AGroupParksNoMoreThanThereIsRoomFor) {
  Start({.slots = 3, .max_parked = 2});
  for (const char* name : {"b1", "b2", "b3"}) Add(name, kBatch);
  Started();
  RunPrompts();
  Add("a1", kNormal, 3);
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_EQ(scheduler_->parked(), 0);
  Remove("b2");
  EXPECT_THAT(Started(), SizeIs(3));
  EXPECT_EQ(scheduler_->parked(), 2);
}

TEST_F(GroupsTest, SequencesThatAreParkedForAGroupSitOutTogether) {
  Start({.slots = 2, .max_in_flight = 2, .max_parked = 2});
  for (const char* name : {"b1", "b2"}) Add(name, kBatch, 1, {1});
  Started();
  Schedule();
  Add("a1", kNormal, 2);
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_THAT(Schedule(), IsEmpty());  // none of them
  Retire();
  EXPECT_THAT(Started(), SizeIs(2));
  EXPECT_THAT(Parked(), SizeIs(2));
}

TEST_F(GroupsTest, BatchWorkMayUseTheSlotsThatAreKeptForAGroup) {
  Start({.slots = 4, .max_parked = 4});
  for (const char* name : {"b1", "b2"}) Add(name);
  Started();
  RunPrompts();
  Add("a1", kNormal, 4);
  Add("d1", kBatch, 2);  // no slots are lent to another group
  for (const char* name : {"c1", "c2", "c3"}) Add(name, kBatch);
  EXPECT_THAT(Started(), ElementsAre("c1", "c2"));
  RunPrompts();
  Remove("b1");
  EXPECT_THAT(Started(), ElementsAre("c3"));
  RunPrompts();
  Remove("b2");  // the last one that the group waits for
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2", "a1+3"));
  EXPECT_THAT(Parked(), SizeIs(3));
}

TEST_F(GroupsTest, ASlotIsLentOnlyIfItCanBeTakenBack) {
  Start({.slots = 3, .max_parked = 1});
  Add("b1");
  Started();
  RunPrompts();
  Add("a1", kNormal, 3);
  for (const char* name : {"c1", "c2"}) Add(name, kBatch);
  Add("e1");
  EXPECT_THAT(Started(), ElementsAre("c1"));  // only one can be parked, and e1 would be firm
  // Nothing more is lent when only the lent slot is missing: c2 is parked after its first row.
  RunPrompts();
  scheduler_->Remove(Find("c1"));
  EXPECT_THAT(Started(), ElementsAre("c2"));
  Remove("b1");
  Add("f1", kBatch);
  EXPECT_THAT(Started(), IsEmpty());
  Run();
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1", "a1+2"));
}

TEST_F(GroupsTest, ABatchGroupLendsNothingBecauseItMayNotPark) {
  Start({.slots = 2, .max_parked = 2});
  Add("b1");
  Started();
  RunPrompts();
  Add("a1", kBatch, 2);
  Add("c1", kBatch);
  EXPECT_THAT(Started(), IsEmpty());
  Remove("b1");
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+1"));
}

TEST_F(GroupsTest, MembersOfAGroupAreParkedOnlyAfterTheForkAndOneByOne) {
  Start({.slots = 2, .max_step_tokens = 3, .max_parked = 2});
  Add("a1", kBatch, 2, {1, 2, 3, 4, 5, 6, 7});
  Started();
  Run();
  Add("b1", kInteractive);
  EXPECT_THAT(Started(), IsEmpty());
  Run();
  EXPECT_THAT(Started(), IsEmpty());  // the fork comes before any parking
  EXPECT_THAT(Forked(), ElementsAre("a1>a1+1"));
  EXPECT_THAT(Parked(), IsEmpty());
  Run();
  EXPECT_THAT(Started(), ElementsAre("b1"));
  EXPECT_THAT(Parked(), ElementsAre("a1+1"));
  EXPECT_EQ(Find("a1").phase(), Sequence::Phase::kDecode);
}

TEST_F(GroupsTest, ALeaderWithoutFollowersIsLikeAnyOtherSequence) {
  Start({.slots = 3});
  Add("a1", kNormal, 3);
  Remove("a1+1");
  EXPECT_EQ(scheduler_->waiting(), 2);
  EXPECT_THAT(Started(), ElementsAre("a1", "a1+2"));
  Remove("a1+2");
  EXPECT_EQ(scheduler_->slots().free(), 2);
  EXPECT_THAT(Run(), ElementsAre(Row{"a1", {1, 2}}));
  Remove("a1");
  EXPECT_EQ(scheduler_->slots().free(), 3);
}

TEST_F(GroupsTest, AGroupIsForkedAlthoughAnotherLostItsFollowersWhileItWaited) {
  Start({.slots = 3});
  Add("a1", kNormal, 2, {1, 2, 3});
  Remove("a1+1");
  Add("b1", kNormal, 2, {1, 2, 3});
  RunPrompts();
  EXPECT_THAT(Run(), SizeIs(3));  // a1, b1 and b1+1 decode
}

TEST_F(GroupsTest, WhenALeaderEndsItsFollowersAreAbandoned) {
  Start({.slots = 3, .max_step_tokens = 4});
  Add("a1", kNormal, 3);
  Remove("a1");  // while it waits
  EXPECT_EQ(scheduler_->waiting(), 2);
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_THAT(Names(placement_.abandoned), ElementsAre("a1+1", "a1+2"));
  EXPECT_EQ(scheduler_->waiting(), 0);
  Add("b1", kNormal, 3, {1, 2, 3, 4, 5, 6, 7});
  Started();
  Run();
  Remove("b1");  // while it reads
  Remove("b1+2");
  EXPECT_EQ(scheduler_->slots().free(), 2);
  EXPECT_THAT(Run(), IsEmpty());
  Started();
  EXPECT_THAT(Names(placement_.abandoned), ElementsAre("b1+1"));
  EXPECT_EQ(scheduler_->slots().free(), 3);
  Started();
  EXPECT_THAT(Names(placement_.abandoned), IsEmpty());
  // After the fork the followers do not depend on their leader.
  Add("c1", kNormal, 3);
  RunPrompts();
  Remove("c1");
  Started();
  EXPECT_THAT(Names(placement_.abandoned), IsEmpty());
  EXPECT_THAT(Run(), SizeIs(2));
}

TEST_F(GroupsTest, EveryComputedTokenIsCharged) {
  Start({.slots = 4});
  Add("a1", kNormal, 3, {1, 2, 3, 4});
  Add("b1", kNormal, 1, {1, 2, 3, 4, 5});  // 5
  Add("a2");
  Add("b2");
  RunPrompts();  // a: 4 tokens, 2 for the followers' last token, 3 a decode; b: 5, 1 a decode
  Remove("a1");
  EXPECT_THAT(Started(), ElementsAre("b2"));
}

TEST_F(GroupsTest, WithStrictQuotasAWholeGroupHasToFit) {
  Start({.slots = 8,
         .max_client_slots = 3,
         .reserved_slots = 2,
         .strict_quotas = true,
         .max_parked = 8});
  EXPECT_EQ(scheduler_->MaxGroup(0, kNormal), 3);
  EXPECT_EQ(scheduler_->MaxGroup(7, kNormal), 6);
  EXPECT_EQ(scheduler_->MaxGroup(7, kInteractive), 7);
  Add("a1");
  Started();
  Add("a2", kNormal, 3);
  Add("a3", kInteractive);  // does not overtake the older group of its client
  clock_.Advance(2 * kAge);
  Add("b1");
  EXPECT_THAT(Started(), ElementsAre("b1"));  // the group does not delay other clients
  Remove("a1");
  EXPECT_THAT(Started(), ElementsAre("a2", "a2+1", "a2+2"));
  Add("c1", kNormal, 3, {1, 2}, 7);
  Add("d1");
  EXPECT_THAT(Started(), IsEmpty());  // d1 would take an unreserved slot that the group of c1 needs
  Add("e1", kInteractive);
  EXPECT_THAT(Started(), ElementsAre("e1"));
  Remove("b1");
  EXPECT_THAT(Started(), ElementsAre("c1", "c1+1", "c1+2"));
}

TEST_F(GroupsTest, WithoutStrictQuotasAGroupMayHaveAllSlots) {
  Start({.slots = 4, .max_client_slots = 2, .reserved_slots = 1, .max_parked = 4});
  EXPECT_EQ(scheduler_->MaxGroup(1, kBatch), 4);
  Add("a1", kNormal, 4);
  EXPECT_THAT(Started(), SizeIs(4));
  RunPrompts();
  // Sequences beyond their client's quota are batch work.
  Add("b1");
  EXPECT_THAT(Started(), ElementsAre("b1"));
  EXPECT_THAT(Parked(), ElementsAre("a1+3"));
}

TEST_F(GroupsTest, AGroupOfAClientAtItsQuotaParksNothing) {
  Start({.slots = 4, .max_client_slots = 1, .max_parked = 4});
  for (const char* name : {"b1", "b2", "b3"}) Add(name, kBatch);
  Add("a1");
  Started();
  RunPrompts();
  Add("a2", kNormal, 2);
  EXPECT_THAT(Started(), IsEmpty());
  EXPECT_THAT(Parked(), IsEmpty());
  EXPECT_EQ(scheduler_->parked(), 0);
}

}  // namespace
}  // namespace aft::server
