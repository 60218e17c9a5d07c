// Prompts that wait for others which read their beginning: where states are left, and when the
// waiting prompts continue.

#include <chrono>
#include <utility>
#include <vector>

#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;

class EngineJoinOrderTest : public EnginePrefixTest {
 protected:
  // An endless stream reads a prompt of 400 tokens. Meanwhile other prompts come, which share these
  // numbers of first tokens with it. Returns the number of cached tokens from which each continues.
  std::vector<uint32_t> WhileOneReads(const std::vector<size_t>& shared) {
    StartHeld();
    const double joins = metrics.prefix_joins.Value();
    const Tokens text = RandomText(400);
    const Accepted leader = Submit(Request(text, 1'000'000));
    control->RunSteps(1);
    std::vector<GenerationRequest> requests;
    std::vector<Accepted> accepted;
    for (const size_t tokens : shared) {
      const auto begin = text.begin();
      // A token other than the one in the text.
      const TokenId other = (text[tokens] + 1) % 256;
      requests.push_back(
          Request(Joined({begin, begin + static_cast<std::ptrdiff_t>(tokens)}, {other, 1}), 3));
      accepted.push_back(Submit(requests.back()));
    }
    for (int i = 0; i < 60; ++i) control->RunSteps(1);
    std::vector<uint32_t> cached;
    for (size_t i = 0; i < accepted.size(); ++i) {
      // They have finished, although the stream that they waited for still runs.
      EXPECT_TRUE(accepted[i].sink->finished()) << i;
      if (!accepted[i].sink->finished()) engine->Cancel(accepted[i].handle);
    }
    EXPECT_EQ(metrics.prefix_joins.Value() - joins, static_cast<double>(shared.size()));
    engine->Cancel(leader.handle);
    control->Resume();
    for (size_t i = 0; i < accepted.size(); ++i) {
      cached.push_back(accepted[i].sink->Wait().usage.cached_tokens);
      EXPECT_EQ(accepted[i].sink->tokens(), Expected(requests[i]));
    }
    return cached;
  }
};

TEST_F(EngineJoinOrderTest, StatesBecomeOneBeforeBothIfTheyWouldBeTooNear) {
  using Counts = std::pair<std::vector<size_t>, std::vector<uint32_t>>;
  for (const auto& [shared, cached] :
       {Counts{{300, 290}, {290, 290}}, Counts{{290, 300}, {290, 290}},
        Counts{{300, 268}, {300, 268}}, Counts{{268, 300}, {268, 300}},
        Counts{{300, 269}, {269, 269}}, Counts{{269, 300}, {269, 269}}}) {
    EXPECT_EQ(WhileOneReads(shared), cached) << shared[0];
    engine.reset();
  }
}

TEST_F(EngineJoinOrderTest, APromptThatHasWaitedGoesBeforeThoseThatCameAfterIt) {
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
  // Finds out which of the two had its rows first.
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

TEST_F(EngineJoinOrderTest, APromptThatHasWaitedForAStateMayWaitForALaterOne) {
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

// States may be evicted as soon as they are kept. A prompt that has waited for one in vain does not
// wait again. Otherwise prompts that begin alike might wait for each other forever.
TEST_F(EngineJoinOrderTest, APromptThatHasWaitedInVainReadsByItself) {
  model.slots = 2;
  model.max_step_tokens = 16;
  model.state_bytes = 50'000;
  options.model.prefix_cache_bytes = 102'000;  // room for two states and hardly any text
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
  // The state that they wait for is kept while another request has the other slot. The state after
  // the answer to that request evicts it.
  requests.push_back(Request(RandomText(33), 60));
  accepted.push_back(Submit(requests.back()));
  while (!accepted.back().sink->finished()) control->RunSteps(1);
  control->RunSteps(2);  // the first of the two reads
  engine->Cancel(leader.handle);
  control->Resume();
  for (size_t i = 0; i < requests.size(); ++i) ExpectServed(accepted[i].sink, requests[i]);
  EXPECT_GT(metrics.prefix_evictions.Value(), 0);
  EXPECT_EQ(metrics.prefix_hits.Value(), 0);
  EXPECT_EQ(metrics.prefix_joins.Value(), 2);
}

}  // namespace
}  // namespace aft::server
