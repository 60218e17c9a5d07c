// Which sequences have a row in a step that clients share.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "tests/property/random_inputs.h"
#include "tests/unit/server/named_sequence.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

// Beside a client with one row.
constexpr StepCost kThreeRows = {.fixed = 0.5, .row = 1};

class StepTurnsTest : public ::testing::Test {
 protected:
  void Start(int max_in_flight = 1, Duration itl_target = {}) {
    ContinuousScheduler::Options options;
    options.slots = 32;
    options.max_step_tokens = 64;
    options.max_in_flight = max_in_flight;
    options.itl_target = itl_target;
    scheduler_.emplace(options);
  }
  // It has decoded for a while, with all others.
  NamedSequence& Add(const std::string& name, int64_t prompt = 1, double weight = 1) {
    NamedSequence& added = sequences_.emplace_back(
        name, Sequence::Owner{.client = name.substr(0, 1), .weight = weight},
        std::vector<TokenId>(static_cast<size_t>(prompt), 1));
    scheduler_->Add(added, TimePoint());
    scheduler_->Place(TimePoint());
    return added;
  }
  void AddAll(const std::vector<std::string>& names) {
    for (const std::string& name : names) Add(name);
    Run({});
  }
  // The names of those in the step.
  std::vector<std::string> Run(const StepCost& cost) {
    scheduler_->Place(TimePoint());
    if (scheduler_->Schedule(ContinuousScheduler::kNoLimit, cost) == nullptr) return {};
    const Step& step = scheduler_->Retire();
    SampleAll(step);
    return Names(step.sequences);
  }
  void SampleAll(const Step& step, TokenId token = 1) {
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      if (step.sequences[i] == nullptr || step.input.rows[i].output != RowOutput::kLast) continue;
      scheduler_->Sampled(*step.sequences[i], token);
    }
  }
  // A small step is behind, and the next one is not near.
  void PassSmallStep() { Run(kThreeRows); }

  std::deque<NamedSequence> sequences_;
  std::optional<ContinuousScheduler> scheduler_;
};

TEST_F(StepTurnsTest, TheStreamsOfTheLargerClientTakeTurns) {
  Start();
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", "b1"));  // a small step
  const auto expect_turn = [&](int steps, const std::string& one, const std::string& other) {
    for (int i = 0; i < steps; ++i) {
      EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", one, other));
    }
  };
  static_assert(ContinuousScheduler::kTurnSteps == 4);
  expect_turn(3, "b1", "b2");
  expect_turn(1, "b2", "b3");
  expect_turn(3, "b3", "b4");
  expect_turn(1, "b1", "b4");
  expect_turn(3, "b1", "b2");
  EXPECT_THAT(Run({}), ElementsAre("a1", "b1", "b2", "b3", "b4"));
}

TEST_F(StepTurnsTest, AloneAClientLosesNothing) {
  Start();
  AddAll({"b1", "b2", "b3"});
  for (int i = 0; i < 100; ++i) EXPECT_THAT(Run(kThreeRows), ElementsAre("b1", "b2", "b3"));
}

TEST_F(StepTurnsTest, OneInSixtyFourIsSmallAndSaysSo) {
  Start();
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  Add("b5", 2);
  EXPECT_FALSE(scheduler_->Schedule(1, kThreeRows)->small);  // its prompt would hide the cost
  scheduler_->Remove(sequences_.back());
  SampleAll(scheduler_->Retire());
  for (int i = 0; i < 200; ++i) {
    const bool small = i % ContinuousScheduler::kSmallStep == 0;
    const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, kThreeRows);
    EXPECT_EQ(step->small, small);
    EXPECT_EQ(step->sequences.size(), small ? 2U : 3U);
    SampleAll(scheduler_->Retire());
  }
}

TEST_F(StepTurnsTest, WithinTheTargetAllAreInTheStep) {
  Start(1, std::chrono::seconds(6));
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", "b1", "b2", "b3", "b4"));
  EXPECT_THAT(Run({.fixed = 1, .row = 1.01}), ElementsAre("a1", "b1"));
  EXPECT_THAT(Run({.fixed = 1, .row = 1.01}), ElementsAre("a1", "b1", "b2", "b3"));
}

TEST_F(StepTurnsTest, AWaitingPromptIsInTheNextStepAndTheStepIsShort) {
  Start();
  AddAll({"b1", "b2", "b3", "b4", "a1"});
  PassSmallStep();
  scheduler_->Remove(sequences_.back());
  Add("a2", 10);
  EXPECT_THAT(Run(kThreeRows), ElementsAre("b1", "b2", "a2"));
}

TEST_F(StepTurnsTest, ThePromptsOfTheLargerClientTakeTurnsToo) {
  Start();
  AddAll({"a1", "b1", "b2"});
  PassSmallStep();
  Add("b3", 1000);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", "b1", "b2"));
  EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", "b2", "b3"));
  EXPECT_THAT(Run(kThreeRows), ElementsAre("a1", "b1", "b3"));
}

// A prompt whose client's streams sit out is still beside streams that wait for tokens.
TEST_F(StepTurnsTest, APromptKeepsToItsBudgetWhileStreamsSitOut) {
  Start();
  AddAll({"b1"});
  for (const char* name : {"a1", "b2", "b3", "b4"}) Add(name, 1000);
  int without_decodes = 0;
  for (int i = 0; i < 10; ++i) {
    const Step* const step = scheduler_->Schedule(/*prompt_budget=*/4, kThreeRows);
    EXPECT_EQ(step->prompt_tokens, 4);
    without_decodes += step->decodes() == 0 ? 1 : 0;
    SampleAll(scheduler_->Retire());
  }
  EXPECT_GT(without_decodes, 0);
}

TEST_F(StepTurnsTest, OneThatSitsOutBesideAStepInFlightKnowsItsTokenThen) {
  Start(/*max_in_flight=*/2);
  AddAll({"a1", "b1", "b2", "b3"});
  const auto plan = [&] {
    const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, kThreeRows);
    std::vector<std::string> rows;
    for (size_t i = 0; i < step->sequences.size(); ++i) {
      rows.push_back(absl::StrCat(NameOf(step->sequences[i]), ":", step->input.rows[i].tokens[0]));
    }
    return rows;
  };
  const auto retire = [&](TokenId token) { SampleAll(scheduler_->Retire(), token); };
  // b1 has three rows of its turn, b2 has two.
  for (int i = 0; i < 3; ++i) {
    plan();
    retire(1);
  }
  const std::string ahead = absl::StrCat(":", kLastSampled);
  EXPECT_THAT(plan(), ElementsAre("a1:1", "b1:1", "b2:1"));
  EXPECT_THAT(plan(), ElementsAre("a1" + ahead, "b2" + ahead, "b3:1"));
  retire(5);
  EXPECT_THAT(plan(), ElementsAre("a1" + ahead, "b1:5", "b3" + ahead));
  for (const TokenId token : {6, 7}) {
    retire(token);
    EXPECT_THAT(plan(), ElementsAre("a1" + ahead, "b1" + ahead, "b3" + ahead));
  }
  retire(8);
  EXPECT_THAT(plan(), ElementsAre("a1" + ahead, "b1" + ahead, "b2:6"));
  retire(8);
  retire(9);
}

// Random clients, weights, costs and prompts that come and go. Every step has as many rows as
// ShareStep says, none waits longer for one than all of its client's sequences have turns, and a
// client that is alone, or has no more than others, has all of its sequences in the step.
TEST_F(StepTurnsTest, KeepsItsPromisesUnderRandomLoad) {
  TestRandom random;
  int sat_out = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    sequences_.clear();
    Start();
    std::vector<double> weights(4);
    for (double& weight : weights) weight = random.Below(2) == 0 ? 1 : random.Uniform(0.2, 5);
    std::map<const Sequence*, int> waited;  // steps without a row
    std::map<const Sequence*, int> others;  // the most that its client had meanwhile, with itself
    std::vector<NamedSequence*> inside;
    const StepCost cost = {.fixed = random.Uniform(0, 10), .row = 1};
    for (int turn = 0; turn < 300; ++turn) {
      if (scheduler_->live() < 32 && random.Below(turn % 100 < 40 ? 2 : 10) == 0) {
        const auto client = static_cast<size_t>(std::min(random.Below(4), random.Below(4)));
        inside.push_back(
            &Add(absl::StrCat(client, "-", turn), 1 + random.Below(20), weights[client]));
      }
      if (!inside.empty() && random.Below(20) == 0) {
        const auto gone = inside.begin() + random.Below(static_cast<int64_t>(inside.size()));
        scheduler_->Remove(**gone);
        waited.erase(*gone);
        others.erase(*gone);
        inside.erase(gone);
      }
      std::map<std::string, int> rows;
      for (const Sequence* sequence : inside) ++rows[sequence->client()];
      std::vector<ClientShare> shares;
      std::map<std::string, size_t> of;
      for (const auto& [client, count] : rows) {
        of[client] = shares.size();
        shares.push_back({.weight = weights[static_cast<size_t>(client[0] - '0')],
                          .rows = count,
                          .begin = shares.size()});
      }
      if (!shares.empty()) ShareStep(cost, 0, false, shares);
      const Step* const step = scheduler_->Schedule(1 + random.Below(30), cost);
      ASSERT_EQ(step == nullptr, inside.empty());
      if (step == nullptr) continue;
      const bool small = step->small;
      std::map<std::string, int64_t> in_step;
      for (const Sequence* sequence : step->sequences) {
        waited[sequence] = -1;
        others[sequence] = 0;
        ++in_step[sequence->client()];
      }
      int64_t total = 0;
      for (const ClientShare& share : shares) {
        const auto client = std::find_if(of.begin(), of.end(), [&](const auto& entry) {
                              return entry.second == share.begin;
                            })->first;
        total += in_step[client];
        ASSERT_GE(in_step[client], 1);
        if (&share == &shares.front()) {
          ASSERT_EQ(in_step[client], share.rows);
        }
        if (!small) {  // of equal clients either may have the odd row
          ASSERT_LE(std::abs(in_step[client] - share.in_step), 1);
        }
      }
      int64_t most = 0;
      for (const ClientShare& share : shares) most += share.in_step;
      if (small) {
        ASSERT_LT(total, static_cast<int64_t>(inside.size()));
      } else {
        ASSERT_EQ(total, most);
      }
      for (const Sequence* sequence : inside) {
        others[sequence] = std::max(others[sequence], rows[sequence->client()]);
        ++waited[sequence];
        ASSERT_LT(waited[sequence], ContinuousScheduler::kTurnSteps * others[sequence]);
        if (waited[sequence] > 0) ++sat_out;
      }
      SampleAll(scheduler_->Retire());
    }
    for (NamedSequence* sequence : inside) scheduler_->Remove(*sequence);
  }
  EXPECT_GT(sat_out, 1000);  // it was tested at all
}

}  // namespace
}  // namespace aft::server
