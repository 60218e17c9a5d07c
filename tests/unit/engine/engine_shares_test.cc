// Steps that clients share, through the engine.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int32_t kUnending = 1'000'000;

class EngineSharesTest : public EngineTest {
 protected:
  // The time of all steps: a millisecond for each, and another one for each of its rows.
  milliseconds TimeOfSteps() const {
    return milliseconds(control->step_count() + control->row_count());
  }

  // StartHeld with 24 slots, and with steps that take this time.
  void StartHeldWithRowsThatTakeTime() {
    model.max_steps_in_flight = 1;  // the clocks count submitted steps
    model.slots = 24;
    options.cpu_clock = [this] { return TimeOfSteps(); };
    options.clock = [this] { return clock.Now() + TimeOfSteps(); };
    StartHeld();
  }

  // Submits a stream alongside 20 streams of another client. Expects that the stream is in every
  // step, that steps soon have at most four rows, and that all answers are exact. REQUIRES: 24
  // slots, and held steps.
  void ExpectOneStreamAlongsideManyInEveryStep();
};

void EngineSharesTest::ExpectOneStreamAlongsideManyInEveryStep() {
  std::vector<GenerationRequest> requests;
  std::vector<Sink> sinks;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(Request({1, static_cast<TokenId>(i)}, 150));
    sinks.push_back(Submit(requests.back()).sink);
  }
  control->RunSteps(5);
  GenerationRequest one = Request({77, 78}, 100);
  one.client = client_b;
  const Sink sink = Submit(one).sink;
  control->Resume();
  ExpectServed(sink, one);
  for (size_t i = 0; i < sinks.size(); ++i) ExpectServed(sinks[i], requests[i]);

  int32_t slot = -1;         // the slot of that one stream
  std::vector<size_t> rows;  // the number of rows of each step that it was in
  size_t between = 0;
  size_t longest = 0;  // steps between two of its rows
  for (const StepInput& step : control->steps()) {
    const auto own = std::find_if(step.rows.begin(), step.rows.end(), [&](const StepRow& row) {
      return slot >= 0 ? row.slot == slot : row.tokens.front() == 77;
    });
    ++between;
    if (own == step.rows.end()) continue;
    if (slot >= 0) longest = std::max(longest, between);
    slot = own->slot;
    between = 0;
    rows.push_back(step.rows.size());
    if (rows.size() == 100) break;
  }
  ASSERT_EQ(rows.size(), 100U);
  EXPECT_EQ(longest, 1U);
  if (model.max_steps_in_flight > 1) return;  // the clock above counts submitted steps
  // A step of the stream alone takes 2 ms, so the others have two rows once that is known.
  EXPECT_EQ(std::count_if(rows.begin() + 50, rows.end(), [](size_t n) { return n > 4; }), 0);
}

TEST_F(EngineSharesTest, OneStreamAlongsideManyHasATokenInEveryStepAndAllAreExact) {
  model.slots = 24;
  // A step works for this time. Then it waits for a core.
  options.cpu_clock = [this] { return TimeOfSteps(); };
  options.clock = [this] { return clock.Now() + seconds(control->step_count()); };
  StartHeld();
  ExpectOneStreamAlongsideManyInEveryStep();
}

// On a GPU the engine's thread only waits, so its CPU time says nothing of the cost of a token.
TEST_F(EngineSharesTest, OnAGpuAllTimeOfAStepCountsAsItsCost) {
  static const DeviceStats device{};
  model.device_stats = &device;
  model.max_steps_in_flight = 1;  // the clock counts submitted steps
  model.slots = 24;
  options.cpu_clock = [] { return Duration(0); };
  options.clock = [this] { return clock.Now() + TimeOfSteps(); };
  StartHeld();
  ExpectOneStreamAlongsideManyInEveryStep();
}

TEST_F(EngineSharesTest, PromptsOfAnotherClientCostAStreamNoMoreThanItsStreamsWould) {
  model.max_steps_in_flight = 1;  // the clocks below count submitted steps
  model.slots = 8;
  model.max_step_tokens = 256;
  // A step takes 1 ms and 0.1 ms for each token. The stream alone takes 1.1 ms.
  const auto time = [&] {
    int64_t tenths = 0;
    for (const StepInput& step : control->steps()) {
      tenths += 10;
      for (const StepRow& row : step.rows) tenths += static_cast<int64_t>(row.tokens.size());
    }
    return std::chrono::microseconds(100 * tenths);
  };
  options.clock = [&, time] { return clock.Now() + time(); };
  options.cpu_clock = time;
  StartHeld();
  GenerationRequest one = Request({77, 78}, kUnending);
  one.client = client_b;
  const Accepted stream = Submit(one);
  // There is always a prompt to read, even before the stream's first step.
  std::deque<std::pair<GenerationRequest, Sink>> prompts;
  size_t read = 0;
  const auto refill = [&] {
    while (prompts.size() < read + 2) {
      const std::vector<TokenId> prompt(500, static_cast<TokenId>(prompts.size()));  // all differ
      prompts.emplace_back(Request(prompt, 1), nullptr);
      prompts.back().second = Submit(prompts.back().first).sink;
    }
    while (read < prompts.size() && prompts[read].second->finished()) ++read;
  };
  for (int i = 0; i < 600; ++i) {
    refill();
    control->RunSteps(1);
  }
  const std::vector<StepInput> steps = control->steps();
  int64_t tokens = 0;
  for (size_t i = 200; i < steps.size(); ++i) {
    int64_t in_step = 0;
    for (const StepRow& row : steps[i].rows) in_step += static_cast<int64_t>(row.tokens.size());
    EXPECT_LT(10 + in_step, 3 * 11) << i;
    tokens += in_step;
  }
  EXPECT_GT(tokens, 12 * 400);                            // 16 are planned
  EXPECT_EQ(stream.sink->tokens().size(), steps.size());  // one in each
  engine->Cancel(stream.handle);
  control->Resume();
  for (const auto& [request, sink] : prompts) ExpectServed(sink, request);
}

// If a client has more than its share, the tokens of a stream come together at the end of its turn.
TEST_F(EngineSharesTest, TokensAreHeldOnlyWhileTheirStreamIsInItsTurn) {
  StartHeldWithRowsThatTakeTime();
  std::vector<Accepted> streams;
  for (TokenId i = 0; i < 8; ++i) streams.push_back(Submit(Request({i}, kUnending)));
  // Two other clients come and go. With both of them the first client's share is larger, so turns
  // are interrupted when one of them goes.
  struct Other {
    std::shared_ptr<const Client> client;
    std::optional<Accepted> stream;
  };
  Other others[] = {{client_b, {}}, {NamedClient("c"), {}}};
  size_t most = 0;     // the most tokens that came together
  int over_small = 0;  // times when tokens were held over a small step without a row
  for (int round = 0; round < 400; ++round) {
    for (Other& other : others) {
      if (random.Below(15) != 0) continue;
      if (other.stream) {
        engine->Cancel(other.stream->handle);
        other.stream.reset();
      } else {
        GenerationRequest request = Request({8}, kUnending);
        request.client = other.client;
        other.stream = Submit(request);
      }
    }
    control->RunSteps(1);
    const std::vector<StepInput> before = control->steps();
    std::vector<size_t> delivered;
    for (const Accepted& stream : streams) delivered.push_back(stream.sink->tokens().size());
    control->RunSteps(1);
    const StepInput next = control->steps()[before.size()];
    const auto rows = std::count_if(next.rows.begin(), next.rows.end(), [&](const StepRow& row) {
      return row.slot < static_cast<int32_t>(streams.size());
    });
    const bool shared = rows < static_cast<std::ptrdiff_t>(streams.size());
    for (size_t i = 0; i < streams.size(); ++i) {
      const auto in = [&](const StepInput& step) {
        return std::any_of(step.rows.begin(), step.rows.end(),
                           [&](const StepRow& row) { return row.slot == static_cast<int32_t>(i); });
      };
      const auto sampled = static_cast<size_t>(std::count_if(before.begin(), before.end(), in));
      ASSERT_LE(delivered[i], sampled);
      const bool small = rows == 1;  // no token is given out before it
      if (shared && (small || in(next))) {
        ASSERT_GT(delivered[i] + StepTurns::kTurnSteps, sampled);
        if (!in(next) && delivered[i] < sampled) ++over_small;
      } else {
        ASSERT_EQ(delivered[i], sampled);
      }
    }
    for (const Other& other : others) {
      if (!other.stream) continue;
      for (const TokenDelta& part : other.stream->sink->parts()) ASSERT_EQ(part.tokens.size(), 1U);
    }
  }
  control->Resume();
  for (const Accepted& stream : streams) {
    engine->Cancel(stream.handle);
    const Outcome outcome = stream.sink->Wait();
    EXPECT_EQ(stream.sink->tokens().size(), outcome.usage.generated_tokens);
    for (const TokenDelta& part : stream.sink->parts()) most = std::max(most, part.tokens.size());
  }
  EXPECT_EQ(most, static_cast<size_t>(StepTurns::kTurnSteps));
  EXPECT_GT(over_small, 0);
}

// Streams of one client end at stop tokens while their tokens are held, and their sinks refuse
// parts at random. Another client and prompts come and go, so steps become shared and unshared.
TEST_F(EngineSharesTest, ASlowReaderLosesItsOwnStreamAndNothingElse) {
  StartHeldWithRowsThatTakeTime();
  const auto submit_slow = [&] {
    GenerationRequest request = Request({static_cast<TokenId>(random.Below(50))}, kUnending);
    for (TokenId id = 0; id < model.vocab_size; id += 16) request.stop.token_ids.push_back(id);
    return Submit(std::move(request), std::make_shared<RecordingSink>(1 + random.Below(12)));
  };
  std::vector<Accepted> slow(8);
  std::vector<std::pair<GenerationRequest, Sink>> others;
  const auto submit_other = [&](std::vector<TokenId> prompt, int32_t tokens) {
    GenerationRequest request = Request(std::move(prompt), tokens);
    request.client = client_b;
    others.emplace_back(request, Submit(request).sink);
  };
  int refused = 0;
  int stopped = 0;
  int completed = 0;
  size_t most = 0;  // the most tokens that came together
  for (int round = 0; round < 700; ++round) {
    for (Accepted& stream : slow) {
      if (stream.sink != nullptr && !stream.sink->finished()) continue;
      if (stream.sink != nullptr) {
        const Outcome outcome = stream.sink->Wait();
        if (outcome.status.ok()) {
          ASSERT_EQ(outcome.reason, FinishReason::kStop);
          ASSERT_EQ(stream.sink->tokens().size(), outcome.usage.generated_tokens);
          ++stopped;
        } else {
          ASSERT_EQ(outcome.status.code(), absl::StatusCode::kResourceExhausted);
          ++refused;
        }
        const std::vector<TokenDelta> parts = stream.sink->parts();
        // The first token is never held.
        ASSERT_LE(parts.empty() ? 0 : parts.front().tokens.size(), 1U);
        // The end completes a character that the last token has begun. It has a part of its own.
        const std::vector<TokenId> ids = stream.sink->tokens();
        if (outcome.status.ok() && !ids.empty() && ids.back() >= 0xC2 && ids.back() <= 0xF4) {
          ASSERT_TRUE(parts.back().tokens.empty());
          ++completed;
        }
        for (const TokenDelta& part : parts) most = std::max(most, part.tokens.size());
        std::string letters;  // every token below 128 is one
        for (const TokenId id : stream.sink->tokens()) {
          if (id < 128) letters += static_cast<char>(id);
        }
        std::string text = stream.sink->text();
        text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c < 0; }),
                   text.end());
        ASSERT_EQ(text, letters);
      }
      stream = submit_slow();
    }
    if (random.Below(12) == 0) submit_other({7, 8}, 1 + static_cast<int32_t>(random.Below(20)));
    if (random.Below(6) == 0) {
      submit_other(std::vector<TokenId>(30, static_cast<TokenId>(random.Below(50))), 1);
    }
    control->RunSteps(1);
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(stopped, 20);
  EXPECT_GT(completed, 5);
  EXPECT_GT(most, 1U);
  for (const Accepted& stream : slow) engine->Cancel(stream.handle);
  control->Resume();
  for (const auto& [request, sink] : others) ExpectServed(sink, request);
}

}  // namespace
}  // namespace aft::server
