// The part of a shared step that each sequence gets.

#include <algorithm>
#include <chrono>
#include <cmath>
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
#include "tests/unit/scheduling/named_sequence.h"
#include "tests/unit/scheduling/scheduler_calls.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

// At this cost a step has three tokens if the smallest client could use one.
constexpr StepCost kThreeTokens = {.fixed = 0.5, .token = 1};

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
  // Runs a step, and returns the names of the sequences in it.
  std::vector<std::string> Run(const StepCost& cost) {
    scheduler_->Place(TimePoint());
    if (scheduler_->Schedule(ContinuousScheduler::kNoLimit, cost) == nullptr) return {};
    const Step& step = scheduler_->Retire();
    SampleAll(*scheduler_, step);
    return Names(step.sequences);
  }
  // Like Run, but with the number of prompt tokens that a sequence reads, as in "b1:20".
  std::vector<std::string> Rows(const StepCost& cost) {
    const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, cost);
    std::vector<std::string> rows;
    for (size_t i = 0; i < step->sequences.size(); ++i) {
      const Sequence& sequence = *step->sequences[i];
      const StepRow& row = step->input.rows[i];
      rows.push_back(NameOf(&sequence));
      if (row.first_position < sequence.prompt_end()) {
        absl::StrAppend(&rows.back(), ":", row.tokens.size());
      }
    }
    SampleAll(*scheduler_, scheduler_->Retire());
    return rows;
  }
  // Runs the small step that comes first. The next small step is then far away.
  void PassSmallStep() { Run(kThreeTokens); }

  std::deque<NamedSequence> sequences_;
  std::optional<ContinuousScheduler> scheduler_;
};

TEST_F(StepTurnsTest, TheStreamsOfTheLargerClientTakeTurns) {
  Start();
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  EXPECT_THAT(Run(kThreeTokens), ElementsAre("a1", "b1"));  // a small step
  const auto expect_turn = [&](int steps, const std::string& one, const std::string& other) {
    for (int i = 0; i < steps; ++i) {
      EXPECT_THAT(Run(kThreeTokens), ElementsAre("a1", one, other));
    }
  };
  static_assert(StepTurns::kTurnSteps == 4);
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
  for (int i = 0; i < 100; ++i) EXPECT_THAT(Run(kThreeTokens), ElementsAre("b1", "b2", "b3"));
}

TEST_F(StepTurnsTest, OneStepInSixtyFourIsSmall) {
  Start();
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  for (int i = 0; i < 200; ++i) {
    const bool small = i % 64 == 0;
    const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, kThreeTokens);
    EXPECT_EQ(step->small, small);
    EXPECT_EQ(step->sequences.size(), small ? 2U : 3U);
    SampleAll(*scheduler_, scheduler_->Retire());
  }
}

TEST_F(StepTurnsTest, WithinTheTargetAllAreInTheStep) {
  Start(1, std::chrono::seconds(6));
  AddAll({"a1", "b1", "b2", "b3", "b4"});
  EXPECT_THAT(Run(kThreeTokens), ElementsAre("a1", "b1", "b2", "b3", "b4"));
  EXPECT_THAT(Run({.fixed = 1, .token = 1.01}), ElementsAre("a1", "b1"));
  EXPECT_THAT(Run({.fixed = 1, .token = 1.01}), ElementsAre("a1", "b1", "b2", "b3"));
}

TEST_F(StepTurnsTest, AShortPromptIsReadWholeInTheNextStepAndTheStepIsShort) {
  Start();
  AddAll({"b1", "b2", "b3", "b4", "a1"});
  PassSmallStep();
  scheduler_->Remove(sequences_.back());
  Add("a2", 2);
  EXPECT_THAT(Rows(kThreeTokens), ElementsAre("b1", "b2", "b3", "a2:2"));  // a2 alone takes 2.5
}

TEST_F(StepTurnsTest, APromptAlongsideAnotherClientsStreamIsReadInSmallPieces) {
  Start();
  AddAll({"a1"});
  Add("b1", 1000);
  EXPECT_THAT(Rows(kThreeTokens), ElementsAre("a1"));  // a small step
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Rows(kThreeTokens), ElementsAre("a1", "b1:2"));
  EXPECT_THAT(Rows({.fixed = 5, .token = 1}), ElementsAre("a1", "b1:8"));
  EXPECT_THAT(Rows({.fixed = 100, .token = 1}),
              ElementsAre("a1", "b1:63"));  // there is no more room
}

TEST_F(StepTurnsTest, SeveralPromptsOfAClientHaveItsShareTogether) {
  Start();
  AddAll({"a1"});
  for (const char* name : {"b1", "b2", "b3"}) Add(name, 1000);
  Add("b4", 1);
  PassSmallStep();
  // b gets 40 tokens.
  const StepCost much = {.fixed = 27.6, .token = 1};
  EXPECT_THAT(Rows(much), ElementsAre("a1", "b1:20", "b2:10", "b3:10"));
  // b gets 8 tokens, too few for several rows.
  const StepCost little = {.fixed = 5, .token = 1};
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Rows(little), ElementsAre("a1", "b1:8"));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Rows(little), ElementsAre("a1", "b2:8"));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Rows(little), ElementsAre("a1", "b3:8"));
  // b4 needs only one token. The first in the order of turns gets the others.
  EXPECT_THAT(Rows(little), ElementsAre("a1", "b1:7", "b4:1"));
}

TEST_F(StepTurnsTest, AShortPromptLeavesTheRestOfItsPartToTheNextOne) {
  Start();
  AddAll({"a1"});
  Add("b1", 10);
  Add("b2", 1000);
  PassSmallStep();
  // b gets 40 tokens.
  EXPECT_THAT(Rows({.fixed = 27.6, .token = 1}), ElementsAre("a1", "b1:10", "b2:30"));
}

TEST_F(StepTurnsTest, WhereNothingDecodesNoPromptIsReadInSmallerPieces) {
  Start();
  Add("a1", 10);
  Add("b1", 1000);
  EXPECT_THAT(Rows(kThreeTokens), ElementsAre("a1:10", "b1:54"));
}

TEST_F(StepTurnsTest, APromptIsNotCutForStreamsOfItsOwnClient) {
  Start();
  AddAll({"b1", "b2"});
  Add("b3", 1000);
  EXPECT_THAT(Rows(kThreeTokens), ElementsAre("b1", "b2", "b3:62"));
}

TEST_F(StepTurnsTest, HalfOfAClientsShareIsForItsPrompts) {
  Start();
  AddAll({"a1", "b1", "b2", "b3", "b4", "b5", "b6"});
  PassSmallStep();
  Add("b7", 1000);
  // b gets 7 of the 8 tokens. The first in the order of turns decode.
  EXPECT_THAT(Rows({.fixed = 4.2, .token = 1}), ElementsAre("a1", "b1", "b2", "b3", "b4", "b7:3"));
  // If b gets two tokens, its decodes and its prompt have one each. If it gets one, they take
  // turns.
  EXPECT_THAT(Rows(kThreeTokens), ElementsAre("a1", "b1", "b7:1"));
  std::map<std::string, int> rows;
  for (int i = 0; i < 4 * 7; ++i) ++rows[Rows({.fixed = 0, .token = 1})[1]];
  EXPECT_EQ(rows.size(), 7U);
  EXPECT_GE(rows["b7:1"], 2);
}

// The budget also applies while the client's streams sit out, because they still wait for tokens.
TEST_F(StepTurnsTest, APromptKeepsToItsBudgetWhileStreamsSitOut) {
  Start();
  AddAll({"b1"});
  for (const char* name : {"a1", "b2"}) Add(name, 1000);
  int without_decodes = 0;
  for (int i = 0; i < 20; ++i) {
    const Step* const step = scheduler_->Schedule(/*prompt_budget=*/1, {.fixed = 0, .token = 1});
    EXPECT_LE(step->prompt_tokens, 2);  // one each
    without_decodes += step->decodes() == 0 ? 1 : 0;
    SampleAll(*scheduler_, scheduler_->Retire());
  }
  EXPECT_GT(without_decodes, 0);
}

// A never_ahead stream has no row until its last result is known, but it still waits for a token.
TEST_F(StepTurnsTest, APromptKeepsToItsBudgetAlongsideAStreamWhoseResultIsAwaited) {
  Start(/*max_in_flight=*/2);
  NamedSequence stream("b1", {.client = "b"}, {1}, {.never_ahead = true});
  scheduler_->Add(stream, TimePoint());
  Run({});
  Add("b2", 1000);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(scheduler_->Schedule(/*prompt_budget=*/4)->prompt_tokens, 4);
  }
  for (int i = 0; i < 2; ++i) SampleAll(*scheduler_, scheduler_->Retire());
  scheduler_->Remove(stream);
}

// Requests of one client have different weights if clients_file was read again between them.
TEST_F(StepTurnsTest, AClientsWeightIsThatOfItsLastRequest) {
  Start();
  AddAll({"a1"});
  Add("b1", 1, /*weight=*/1);
  for (const char* name : {"b2", "b3", "b4", "b5"}) Add(name, 1, /*weight=*/3);
  Run({});
  PassSmallStep();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Rows(kThreeTokens).size(), 5U);  // 0.8 * 5 * 1.5 - 0.5
  Add("a2", 1, /*weight=*/3);
  scheduler_->Remove(sequences_.back());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Rows(kThreeTokens).size(), 3U);
}

TEST_F(StepTurnsTest, ASequenceThatSatOutKnowsItsTokenWhenItContinues) {
  Start(/*max_in_flight=*/2);
  AddAll({"a1", "b1", "b2", "b3"});
  const auto plan = [&] {
    const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, kThreeTokens);
    std::vector<std::string> rows;
    for (size_t i = 0; i < step->sequences.size(); ++i) {
      rows.push_back(absl::StrCat(NameOf(step->sequences[i]), ":", step->input.rows[i].tokens[0]));
    }
    return rows;
  };
  const auto retire = [&](TokenId token) { SampleAll(*scheduler_, scheduler_->Retire(), token); };
  // b1 has had three rows of its turn, b2 two.
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

// Clients, weights, costs, streams and prompts are random, and come and go. While a sequence
// decodes, a step takes no longer than the smallest client may wait, and that client has all that
// it could use. Every client has a row. No stream waits for a row longer than the turns of its
// client's sequences take. A client's prompts have half of its part, and so have its streams. If
// nothing decodes, or if all clients could use the same, a step is as large as possible.
TEST_F(StepTurnsTest, KeepsItsPromisesUnderRandomLoad) {
  TestRandom random;
  int sat_out = 0;
  int cut = 0;
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(round);
    sequences_.clear();
    Start();
    std::vector<double> weights(4);
    for (double& weight : weights) weight = random.Below(2) == 0 ? 1 : random.Uniform(0.2, 5);
    std::map<const Sequence*, int> waited;  // steps without a row
    std::map<const Sequence*, int> others;  // the most sequences that its client had meanwhile
    std::vector<NamedSequence*> inside;
    const StepCost cost = {.fixed = random.Uniform(0, 10), .token = 1};
    const int64_t longest_prompt = random.Below(2) == 0 ? 20 : 400;
    for (int turn = 0; turn < 300; ++turn) {
      if (scheduler_->live() < 32 && random.Below(turn % 100 < 40 ? 2 : 10) == 0) {
        const auto client = static_cast<size_t>(std::min(random.Below(4), random.Below(4)));
        inside.push_back(&Add(absl::StrCat(client, "-", turn), 1 + random.Below(longest_prompt),
                              weights[client]));
      }
      if (!inside.empty() && random.Below(20) == 0) {
        const auto gone = inside.begin() + random.Below(static_cast<int64_t>(inside.size()));
        scheduler_->Remove(**gone);
        waited.erase(*gone);
        others.erase(*gone);
        inside.erase(gone);
      }
      struct Client {
        double weight = 0;
        int64_t decodes = 0;  // rows that it could use
        int64_t unread = 0;
        int64_t decoded = 0;  // in the step
        int64_t read = 0;
        int sequences = 0;
        int64_t tokens(int64_t room) const { return decodes + std::min(unread, room); }
      };
      std::map<std::string, Client> clients;
      int64_t decodes = 0;
      int64_t unread = 0;
      for (const NamedSequence* sequence : inside) {
        Client& client = clients[sequence->client()];
        client.weight = sequence->weight();
        ++client.sequences;
        client.unread += sequence->prompt_left();
        unread += sequence->prompt_left();
        if (sequence->prompt_left() > 0) continue;
        ++client.decodes;
        ++decodes;
      }
      const Step* const step = scheduler_->Schedule(ContinuousScheduler::kNoLimit, cost);
      ASSERT_EQ(step == nullptr, inside.empty());
      if (step == nullptr) continue;
      for (size_t i = 0; i < step->sequences.size(); ++i) {
        const Sequence* const sequence = step->sequences[i];
        waited[sequence] = step->small ? 0 : -1;
        others[sequence] = 0;
        Client& client = clients[sequence->client()];
        const auto tokens = static_cast<int64_t>(step->input.rows[i].tokens.size());
        const bool reads = step->input.rows[i].first_position < sequence->prompt_end();
        (reads ? client.read : client.decoded) += tokens;
      }

      const int64_t room = 64 - static_cast<int64_t>(inside.size()) + 1;
      double weights_in = 0;
      for (const auto& [name, client] : clients) weights_in += client.weight;
      const auto load = [&](const Client& client) {
        return static_cast<double>(client.tokens(room)) / client.weight;
      };
      const Client* smallest = nullptr;
      bool alike = true;
      for (const auto& [name, client] : clients) {
        if (smallest == nullptr || load(client) < load(*smallest)) smallest = &client;
        alike = alike && load(client) == load(clients.begin()->second);
      }
      const int64_t most = std::min<int64_t>(64, decodes + unread);
      if (decodes == 0 || alike) {
        ASSERT_EQ(step->tokens, most);
        ASSERT_FALSE(step->small);
      } else {
        const auto time = [&](double tokens) { return cost.fixed + cost.token * tokens; };
        double parity = 0;  // tokens if all have as many as the smallest
        for (const auto& [name, client] : clients) {
          parity += std::ceil(load(*smallest) * client.weight);
        }
        const double alone = time(static_cast<double>(smallest->tokens(room)));
        ASSERT_LE(time(static_cast<double>(step->tokens)),
                  std::max((1 + weights_in / smallest->weight) * alone, time(parity)));
        ASSERT_EQ(smallest->decoded, smallest->decodes);
        if (step->tokens < 64) {
          ASSERT_GE(smallest->read, std::min(smallest->unread, room));
        }
      }
      if (step->tokens < most) ++cut;
      for (const auto& [name, client] : clients) {
        if (step->small) continue;  // has no prompts of clients that are cut
        ASSERT_GE(client.decoded + client.read, 1);
        if (step->tokens == 64) continue;  // it is full, and all prompts share the room
        const int64_t half = (client.decoded + client.read) / 2;
        ASSERT_GE(client.decoded, std::min(client.decodes, half));
        ASSERT_GE(client.read, std::min(client.unread, half));
      }
      for (const Sequence* sequence : inside) {
        others[sequence] = std::max(others[sequence], clients[sequence->client()].sequences);
        if (sequence->prompt_left() > 0) {
          waited[sequence] = 0;
        } else if (!step->small) {
          ++waited[sequence];
        }
        ASSERT_LT(waited[sequence], StepTurns::kTurnSteps * others[sequence]);
        if (waited[sequence] > 0) ++sat_out;
      }
      SampleAll(*scheduler_, scheduler_->Retire());
    }
    for (NamedSequence* sequence : inside) scheduler_->Remove(*sequence);
  }
  EXPECT_GT(sat_out, 1000);  // sequences did sit out
  EXPECT_GT(cut, 1000);
}

}  // namespace
}  // namespace aft::server
