// Prompts that wait for what others are reading: where these leave their states, and when those
// that wait go on.

#include <chrono>
#include <vector>

#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;

class EngineJoinOrderTest : public EnginePrefixTest {
 protected:
  // A stream without an end that is reading a prompt of 400 tokens, while two come that begin as it
  // does, in this order, for so many tokens. What each of them goes on from.
  std::vector<uint32_t> WhileOneReads(const std::vector<size_t>& shared) {
    StartHeld();
    const Tokens text = RandomText(400);
    const Accepted leader = Submit(Request(text, 1'000'000));
    control->RunSteps(1);
    std::vector<GenerationRequest> requests;
    std::vector<Accepted> accepted;
    for (const size_t tokens : shared) {
      const auto begin = text.begin();
      // Not what follows in the text.
      const TokenId other = (text[tokens] + 1) % 256;
      requests.push_back(
          Request(Joined({begin, begin + static_cast<std::ptrdiff_t>(tokens)}, {other, 1}), 3));
      accepted.push_back(Submit(requests.back()));
    }
    for (int i = 0; i < 60; ++i) control->RunSteps(1);
    std::vector<uint32_t> cached;
    for (size_t i = 0; i < accepted.size(); ++i) {
      // Long since, though the one that they waited for goes on.
      EXPECT_TRUE(accepted[i].sink->finished()) << i;
      if (!accepted[i].sink->finished()) engine->Cancel(accepted[i].handle);
    }
    EXPECT_EQ(metrics.prefix_joins.Value(), static_cast<double>(shared.size()));
    engine->Cancel(leader.handle);
    control->Resume();
    for (size_t i = 0; i < accepted.size(); ++i) {
      cached.push_back(accepted[i].sink->Wait().usage.cached_tokens);
      EXPECT_EQ(accepted[i].sink->tokens(), Expected(requests[i]));
    }
    return cached;
  }
};

TEST_F(EngineJoinOrderTest, StatesThatWouldBeTooNearBecomeOneBeforeBoth) {
  EXPECT_EQ(WhileOneReads({300, 290}), (std::vector<uint32_t>{290, 290}));
}

TEST_F(EngineJoinOrderTest, WhicheverIsAskedForFirst) {
  EXPECT_EQ(WhileOneReads({290, 300}), (std::vector<uint32_t>{290, 290}));
}

TEST_F(EngineJoinOrderTest, StatesThatAreFarEnoughFromEachOtherStayTwo) {
  EXPECT_EQ(WhileOneReads({300, 268}), (std::vector<uint32_t>{300, 268}));
}

TEST_F(EngineJoinOrderTest, InBothDirections) {
  EXPECT_EQ(WhileOneReads({268, 300}), (std::vector<uint32_t>{268, 300}));
}

TEST_F(EngineJoinOrderTest, AndNotATokenLess) {
  EXPECT_EQ(WhileOneReads({300, 269}), (std::vector<uint32_t>{269, 269}));
}

TEST_F(EngineJoinOrderTest, NorIfTheOtherWasFirst) {
  EXPECT_EQ(WhileOneReads({269, 300}), (std::vector<uint32_t>{269, 269}));
}

TEST_F(EngineJoinOrderTest, OneThatHasWaitedComesBeforeThoseThatCameAfterIt) {
  model.slots = 2;
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {1}), 3);
  const Accepted leader = Submit(first);
  control->RunSteps(1);
  const GenerationRequest second = Request(Joined(system, {2}), 3);
  const Accepted waits = Submit(second);
  control->RunSteps(1);
  EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  clock.Advance(milliseconds(1));
  const Accepted endless = Submit(Request(RandomText(3), 1'000'000));  // takes the other slot
  control->RunSteps(1);
  clock.Advance(milliseconds(1));
  const GenerationRequest later = Request(RandomText(7), 3);
  const Accepted comes_later = Submit(later);
  while (!waits.sink->finished() || !comes_later.sink->finished()) control->RunSteps(1);
  engine->Cancel(endless.handle);
  control->Resume();
  EXPECT_EQ(UsageOf(waits, second).cached_tokens, 400U);
  ExpectServed(comes_later.sink, later);
  // Whose rows came first.
  size_t waited = 0;
  size_t late = 0;
  const std::vector<StepInput> steps = control->steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const StepRow& row : steps[i].rows) {
      if (row.tokens.back() == second.prompt.back() && row.first_position == 400) waited = i;
      if (row.tokens == later.prompt) late = i;
    }
  }
  EXPECT_GT(waited, 0U);
  EXPECT_LT(waited, late);
}

TEST_F(EngineJoinOrderTest, WhoHasWaitedForAStateMayWaitForAnotherBehindIt) {
  StartHeld();
  const Tokens system = RandomText(300);
  const Tokens more = Joined(system, RandomText(200));
  std::vector<GenerationRequest> requests = {Request(Joined(system, {1}), 3),
                                             Request(Joined(more, {2}), 3),
                                             Request(Joined(more, {3}), 3)};
  requests[1].prompt[300] = requests[2].prompt[300] = (requests[0].prompt[300] + 1) % 256;
  std::vector<Accepted> accepted;
  accepted.reserve(requests.size());
  for (const GenerationRequest& request : requests) accepted.push_back(Submit(request));
  control->Resume();
  const std::vector<uint32_t> expected = {0, 300, 500};
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(UsageOf(accepted[i], requests[i]).cached_tokens, expected[i]) << i;
  }
  EXPECT_EQ(metrics.prefix_joins.Value(), 3);
}

// Where states go as soon as they come, who has waited for one in vain does not wait again: else
// prompts that begin alike might wait for each other without an end.
TEST_F(EngineJoinOrderTest, WhoHasWaitedInVainReadsByItself) {
  model.slots = 2;
  model.max_step_tokens = 16;
  model.state_bytes = 50'000;
  options.model.prefix_cache_bytes = 102'000;  // two states, and hardly a text
  StartHeld();
  const Tokens system = RandomText(300);
  std::vector<GenerationRequest> requests;
  std::vector<Accepted> accepted;
  const Accepted leader = Submit(Request(Joined(system, {1}), 1'000'000));
  control->RunSteps(1);
  for (const TokenId last : {2, 3}) {
    requests.push_back(Request(Joined(system, {last}), 3));
    accepted.push_back(Submit(requests.back()));
  }
  control->RunSteps(1);
  ASSERT_EQ(metrics.prefix_joins.Value(), 2);
  // The state that they wait for comes while another one has the other slot, and what that leaves
  // behind its answer takes its place.
  requests.push_back(Request(RandomText(33), 60));
  accepted.push_back(Submit(requests.back()));
  while (!accepted.back().sink->finished()) control->RunSteps(1);
  control->RunSteps(2);  // the first of them reads
  engine->Cancel(leader.handle);
  control->Resume();
  for (size_t i = 0; i < requests.size(); ++i) ExpectServed(accepted[i].sink, requests[i]);
  EXPECT_GT(metrics.prefix_evictions.Value(), 0);
  EXPECT_EQ(metrics.prefix_hits.Value(), 0);
  EXPECT_EQ(metrics.prefix_joins.Value(), 2);
}

}  // namespace
}  // namespace aft::server
