// Turns: requests that continue from the states of earlier ones.

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/kept_bytes.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/scheduling/random_rules.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EngineStateTest : public EngineTest {
 protected:
  // A request whose state is to be stored.
  GenerationRequest Turn(State previous, std::vector<TokenId> prompt, int32_t max_tokens) {
    GenerationRequest request = Request(std::move(prompt), max_tokens);
    request.previous = std::move(previous);
    request.store = true;
    return request;
  }
  ScoringRequest ScoreTurn(State previous, std::vector<TokenId> tokens) {
    ScoringRequest request = Score(std::move(tokens));
    request.previous = std::move(previous);
    request.store = true;
    return request;
  }

  template <typename Request>
  State Run(Request request) {
    return StateOf(Submit(std::move(request)).sink->Wait());
  }

  // The model writes letters in alphabetical order, which depend only on the position in the text.
  void Spell() {
    model.next_token = [](uint64_t, int64_t count) {
      return static_cast<TokenId>('a' + count % 26);
    };
  }

  FakeModelRunner::Text text{model};
};

TEST_F(EngineStateTest, NothingIsStoredUnlessTheRequestAsksForIt) {
  Start();
  EXPECT_EQ(Submit(Request({1}, 2)).sink->Wait().turn, nullptr);
  GenerationRequest request = Request({2}, 2);
  request.previous = Run(Turn(nullptr, {1}, 2));
  EXPECT_EQ(Submit(request).sink->Wait().turn, nullptr);
}

TEST_F(EngineStateTest, AStopTokenIsNoPartOfTheText) {
  for (const bool eos : {false, true}) {
    SCOPED_TRACE(eos);
    model.next_token = [](uint64_t, int64_t count) {
      return count == 5 ? FakeTokenizer::kEos : static_cast<TokenId>('a' + count);
    };
    Start();
    GenerationRequest request = Turn(nullptr, {1, 2}, 50);
    request.stop.ignore_eos = !eos;
    if (!eos) request.stop.token_ids = {FakeTokenizer::kEos};
    const Accepted ended = Submit(request);
    const State state = StateOf(ended.sink->Wait());
    EXPECT_THAT(ended.sink->tokens(), ElementsAre('c', 'd', 'e'));
    EXPECT_EQ(state->pending, kNoToken);
    EXPECT_EQ(state->tokens, 5);
    EXPECT_EQ(state->outputs, 4U);
    EXPECT_EQ(state->history, HistoryOf(0, {1, 2, 'c', 'd', 'e'}));
    EXPECT_EQ(std::count_if(state->had.begin(), state->had.end(),
                            [](const TokenUse& use) { return use.id == FakeTokenizer::kEos; }),
              0);
    EXPECT_THAT(Refused(Turn(state, {}, 5)), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      HasSubstr("prompt: must not be empty")));
    // What the model has consumed is the text, and nothing more.
    FakeModelRunner::Text whole(model);
    whole.Read({1, 2, 'c', 'd', 'e'});
    const Accepted scored = Submit(ScoreTurn(state, {30, 31}));
    whole.Read({30});
    EXPECT_EQ(scored.sink->Wait().logprob, whole.Score(31).logprob);
    engine.reset();
  }
}

TEST_F(EngineStateTest, NoTurnDrawsWithTheNumbersThatDrewAnEnd) {
  std::vector<uint64_t> drawn;
  model.not_finite = [&](uint64_t, uint64_t index) {
    drawn.push_back(index);
    return false;
  };
  model.next_token = [](uint64_t, int64_t count) {
    return count == 5 ? FakeTokenizer::kEos : static_cast<TokenId>('a' + count);
  };
  Start();
  GenerationRequest request = Turn(nullptr, {1, 2}, 50);
  request.stop.ignore_eos = false;
  const State state = StateOf(Submit(request).sink->Wait());
  Submit(Turn(state, {30}, 1)).sink->Wait();
  EXPECT_THAT(drawn, ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(EngineStateTest, NewTextFollowsAllTokensOfAStopString) {
  Spell();
  Start();
  GenerationRequest request = Turn(nullptr, {1, 2}, 50);
  request.stop.strings = {"efg"};
  const Accepted ended = Submit(request);
  const State state = StateOf(ended.sink->Wait());
  EXPECT_EQ(ended.sink->text(), "cd");
  EXPECT_THAT(ended.sink->tokens(), ElementsAre('c', 'd', 'e', 'f', 'g'));
  EXPECT_EQ(state->pending, 'g');
  EXPECT_EQ(state->history, HistoryOf(0, {1, 2, 'c', 'd', 'e', 'f', 'g'}));
  const Accepted more = Submit(Turn(state, {}, 2));
  more.sink->Wait();
  EXPECT_EQ(more.sink->text(), "hi");
}

TEST_F(EngineStateTest, OnlyAStoredOutputThatMayEndEarlyWaitsForItsResults) {
  model.max_steps_in_flight = 2;
  Spell();
  Start();
  const auto rows_ahead = [&](GenerationRequest request) {
    const auto before = static_cast<size_t>(control->step_count());
    Submit(std::move(request)).sink->Wait();
    const std::vector<StepInput> steps = control->steps();
    return std::count_if(steps.begin() + static_cast<std::ptrdiff_t>(before), steps.end(),
                         [](const StepInput& step) {
                           return step.rows[0].tokens == std::vector<TokenId>{kLastSampled};
                         });
  };
  EXPECT_EQ(rows_ahead(Turn(nullptr, {1}, 9)), 8);
  GenerationRequest may_end = Turn(nullptr, {1}, 9);
  may_end.stop.token_ids = {200};
  EXPECT_EQ(rows_ahead(may_end), 0);
  may_end.store = false;
  EXPECT_EQ(rows_ahead(may_end), 8);
  may_end.store = true;
  may_end.stop.token_ids = {};
  may_end.stop.strings = {"zzz"};
  EXPECT_EQ(rows_ahead(may_end), 0);
  may_end.stop.strings = {};
  may_end.stop.ignore_eos = false;
  EXPECT_EQ(rows_ahead(may_end), 0);
}

TEST_F(EngineStateTest, ARequestThatDoesNotEndWellLeavesNoState) {
  Start();
  const State state = Run(Turn(nullptr, {1, 2}, 3));
  const Accepted cancelled = Submit(Turn(state, {3}, 1'000'000));
  cancelled.sink->WaitForParts(3);
  engine->Cancel(cancelled.handle);
  EXPECT_EQ(cancelled.sink->Wait().turn, nullptr);
  const Sink slow = std::make_shared<RecordingSink>(/*accept=*/2);
  EXPECT_EQ(Submit(Turn(state, {3}, 3), slow).sink->Wait().turn, nullptr);
  // The state has not changed.
  const GenerationRequest next = Turn(state, {3}, 4);
  const Accepted good = Submit(next);
  good.sink->Wait();
  text.Read({1, 2});
  SamplingParams first;
  first.seed = 1;
  text.Sample(first, 3);
  text.Read({3});
  EXPECT_EQ(good.sink->tokens(), text.Sample(next.sampling, 4));
}

TEST_F(EngineStateTest, TheLengthOfTheModelCountsTheTextBefore) {
  model.max_seq_len = 10;
  Start();
  const State state = Run(Turn(nullptr, {1, 2, 3}, 4));
  EXPECT_THAT(Refused(Turn(state, {4, 5, 6}, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("prompt: 7 tokens before, 3 tokens"), HasSubstr("=10"))));
  EXPECT_THAT(Refused(ScoreTurn(state, {4, 5, 6, 7})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "text_to_score: 7 tokens before and 4 exceed the model's max_seq_len=10"));
  EXPECT_EQ(Run(ScoreTurn(state, {4, 5, 6}))->tokens, 10);
  const Accepted last = Submit(Turn(state, {4, 5}, 9));
  const Outcome outcome = last.sink->Wait();
  EXPECT_EQ(outcome.limit, "model max_seq_len=10");
  EXPECT_EQ(last.sink->tokens().size(), 1U);
  EXPECT_EQ(StateOf(outcome)->tokens, 10);
}

TEST_F(EngineStateTest, AStateOfAnotherModelNamesBothFingerprints) {
  model.fingerprint = 0xAB;
  Start();
  SequenceState state = *Run(Turn(nullptr, {1}, 2));
  state.model = 0xCD;
  EXPECT_THAT(Refused(Turn(std::make_shared<const SequenceState>(state), {1}, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("00000000000000ab"), HasSubstr("00000000000000cd"))));
  EXPECT_EQ(metrics.rejected(Rejection::kInvalid).Value(), 1);
}

TEST_F(EngineStateTest, AnInvalidStateIsRefusedBeforeItReachesTheModel) {
  Start();
  const State good = Run(Turn(nullptr, {1, 2}, 2));
  const auto refused = [&](const auto& change) {
    SequenceState bad = *good;
    change(bad);
    return Refused(Turn(std::make_shared<const SequenceState>(bad), {1}, 1)).code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](SequenceState& state) { state.tokens = 0; }), invalid);
  EXPECT_EQ(refused([](SequenceState& state) { state.tokens = -5; }), invalid);
  for (const int64_t tokens : {std::numeric_limits<int64_t>::min(), kMaxTextTokens + 1,
                               std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(refused([tokens](SequenceState& state) { state.tokens = tokens; }), invalid);
  }
  EXPECT_EQ(refused([](SequenceState& state) { state.outputs = state.tokens + 1U; }), invalid);
  EXPECT_EQ(refused([](SequenceState& state) { state.pending = 257; }), invalid);
  EXPECT_EQ(refused([](SequenceState& state) { state.pending = -2; }), invalid);
  EXPECT_EQ(refused([](SequenceState& state) { state.had[0].id = -1; }), invalid);
  EXPECT_EQ(refused([](SequenceState& state) { state.had.back().id = 257; }), invalid);
  // Only the runner detects these. The request ends, its neighbour does not, and its slot is free.
  const Accepted neighbour = Submit(Request({1}, 1'000'000));
  SequenceState damaged = *good;
  damaged.snapshot.back() ^= 1;
  SequenceState longer = *good;
  longer.tokens += 1;
  for (const SequenceState& lost : {damaged, longer}) {
    EXPECT_THAT(
        Submit(Turn(std::make_shared<const SequenceState>(lost), {1}, 1)).sink->Wait().status,
        StatusIs(absl::StatusCode::kInternal, HasSubstr("its state was lost")));
  }
  ExpectServes();
  EXPECT_FALSE(neighbour.sink->finished());
  engine->Cancel(neighbour.handle);
}

TEST_F(EngineStateTest, ALostStateEndsItsRequestAlone) {
  Start();
  const State state = Run(Turn(nullptr, {1, 2}, 2));
  control->FailNext(FakeCall::kRestore);
  EXPECT_THAT(Submit(Turn(state, {3}, 2)).sink->Wait().status,
              StatusIs(absl::StatusCode::kInternal, Not(HasSubstr("secret"))));
  control->FailNext(FakeCall::kKeep);
  const Outcome outcome = Submit(Turn(state, {3}, 2)).sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(outcome.turn, nullptr);
  ExpectServes();
  EXPECT_EQ(metrics.failures(EngineFailure::kStateLost).Value(), 2);
  EXPECT_EQ(metrics.failures(EngineFailure::kStep).Value(), 0);
}

TEST_F(EngineStateTest, ScoresOfTheTurnsOfATextAreThoseOfTheText) {
  Start();
  std::vector<TokenId> whole(60);
  std::iota(whole.begin(), whole.end(), 40);
  const double all = Submit(ScoreTurn(nullptr, whole)).sink->Wait().logprob;
  double sum = 0;
  State state;
  std::optional<uint32_t> first_index;
  for (size_t at = 0; at < whole.size(); at += 20) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(at);
    const Accepted part = Submit(ScoreTurn(state, {begin, begin + 20}));
    const Outcome outcome = part.sink->Wait();
    sum += outcome.logprob;
    EXPECT_EQ(outcome.usage.scored_tokens, at == 0 ? 19U : 20U);
    EXPECT_EQ(part.sink->parts().front().first_index, at == 0 ? 1U : 0U);
    state = StateOf(outcome);
  }
  EXPECT_NEAR(sum, all, 1e-9);
  EXPECT_EQ(state->pending, whole.back());
}

// The reference: a text that is cut into turns, without an engine.
struct Node {
  explicit Node(const FakeModelRunner::Options& model) : text(model) {}

  std::shared_ptr<const SequenceState> state;
  FakeModelRunner::Text text;
  std::vector<TokenId> ids;
  std::map<TokenId, uint32_t> had;
  uint64_t outputs = 0;
  bool pending = false;

  void Add(const std::vector<TokenId>& tokens, bool sampled) {
    for (const TokenId token : tokens) {
      ids.push_back(token);
      had[token] += sampled ? 1 : 0;
    }
    if (sampled) outputs += tokens.size();
  }
  void ExpectState() const {
    EXPECT_EQ(state->tokens, static_cast<int64_t>(ids.size()));
    EXPECT_EQ(state->outputs, outputs);
    EXPECT_EQ(state->history, HistoryOf(0, ids));
    EXPECT_EQ(state->pending, pending ? ids.back() : kNoToken);
    std::vector<TokenUse> uses;
    for (const auto& [id, sampled] : had) uses.push_back({.id = id, .sampled = sampled});
    EXPECT_EQ(state->had, uses);
  }
};

class EngineTurnsTest : public EngineStateTest {
 protected:
  GenerationRequest RandomGeneration(const Node& from) {
    const bool may_be_empty = from.pending;
    GenerationRequest request =
        Turn(from.state, RandomText((may_be_empty ? 0 : 1) + random.Below(25)),
             static_cast<int32_t>(1 + random.Below(12)));
    if (random.Below(2) == 0) request.sampling.repetition_penalty = 1.5F;
    if (random.Below(3) == 0) request.sampling.frequency_penalty = 0.5F;
    if (random.Below(2) == 0) request.sampling.penalty_decay = 0.9F;
    if (random.Below(2) == 0) request.stop.token_ids = RandomText(20);
    if (random.Below(2) == 0) {
      request.sampling.rules = RandomRules(random, model.vocab_size, request.stop.token_ids);
      request.stop.min_tokens = static_cast<int32_t>(random.Below(request.stop.max_tokens + 1));
    }
    RandomOwner(request);
    return request;
  }

  // Returns the answer to the request, and adds the prompt and the answer to the text.
  static std::vector<TokenId> Answer(const GenerationRequest& request, Node& node) {
    node.text.Read(request.prompt);
    node.text.BeginOutput();
    node.Add(request.prompt, /*sampled=*/false);
    std::vector<TokenId> answer;
    const std::vector<TokenId>& stop = request.stop.token_ids;
    node.pending = true;
    SamplingParams sampling = request.sampling;
    sampling.ends_from = node.outputs + static_cast<uint64_t>(request.stop.min_tokens);
    while (static_cast<int32_t>(answer.size()) < request.stop.max_tokens) {
      FakeModelRunner::Text next = node.text;
      const TokenId token = next.Sample(sampling, 1).front();
      if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
        node.pending = false;
        node.text.SkipOutput();
        ++node.outputs;
        break;
      }
      node.text = next;
      answer.push_back(token);
    }
    node.Add(answer, /*sampled=*/true);
    return answer;
  }
  static std::vector<float> Scores(const ScoringRequest& request, Node& node) {
    std::vector<float> scores;
    bool context = node.pending;
    for (const TokenId token : request.text) {
      if (context) scores.push_back(node.text.Score(token).logprob);
      context = true;
      node.text.Read({token});
    }
    node.pending = node.pending || request.text.size() > 1;
    node.Add(request.text, /*sampled=*/false);
    return scores;
  }
};

TEST_F(EngineTurnsTest, HoweverATextIsCutIntoTurnsItIsTheTextOfOneRun) {
  model.slots = 3;
  model.max_step_tokens = 16;
  StartHeld();
  const Accepted endless = Submit(Request({0}, 1'000'000));  // so that there is always a next step
  std::vector<Node> nodes = {Node(model)};
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE(round);
    std::vector<Sink> sinks;
    std::vector<Node> after;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<float>> scores;
    control->Hold();
    for (int i = 0; i < 4; ++i) {
      if (i == 2) control->RunSteps(1);  // the first two are under way when the others come
      const size_t from = static_cast<size_t>(random.Below(static_cast<int64_t>(nodes.size())));
      Node& node = after.emplace_back(nodes[from]);
      tokens.emplace_back();
      scores.emplace_back();
      if (random.Below(3) == 0) {
        ScoringRequest request = ScoreTurn(node.state, RandomText(1 + random.Below(25)));
        RandomOwner(request);
        scores.back() = Scores(request, node);
        sinks.push_back(Submit(std::move(request)).sink);
      } else {
        GenerationRequest request = RandomGeneration(node);
        tokens.back() = Answer(request, node);
        sinks.push_back(Submit(std::move(request)).sink);
      }
    }
    control->Resume();
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      Node& node = after[i];
      node.state = StateOf(sinks[i]->Wait());
      std::vector<TokenId> got;
      std::vector<float> got_scores;
      for (const SampledToken& token : sinks[i]->all_tokens()) {
        if (scores[i].empty()) got.push_back(token.id);
        if (!scores[i].empty()) got_scores.push_back(token.logprob);
      }
      ASSERT_EQ(got, tokens[i]);
      ASSERT_EQ(got_scores, scores[i]);
      node.ExpectState();
      nodes.push_back(std::move(node));
    }
  }
  engine->Cancel(endless.handle);
  EXPECT_GT(metrics.parks.Value(), 0);
}

TEST(SequenceStateTest, AStateTakesNoMoreThanItsMaximum) {
  ModelInfo info;
  info.vocab_size = 100;
  info.state_bytes = 1000;
  TurnEnd turn;
  turn.state = KeptBytes(std::string(1072, 'x'));
  turn.text = {5, 7, 5, 99, 0};
  const int64_t most = MaxStateBytes(info, 5, 5);
  const SequenceState state = MakeState(turn).value();
  EXPECT_LE(StateBytes(state), most);
  EXPECT_GT(StateBytes(state), 1072);
  EXPECT_EQ(MaxStateBytes(info, 5, 1005), most + 4000);
  EXPECT_EQ(MaxStateBytes(info, 1'000'000, 5), MaxStateBytes(info, 100, 5));
}

TEST(SequenceStateTest, ATurnWhoseStateTheDeviceLostMakesNone) {
  TurnEnd turn;
  turn.state = KeptBytes(absl::InternalError("secret detail"));
  turn.text = {5};
  EXPECT_THAT(MakeState(turn).status(),
              StatusIs(absl::StatusCode::kInternal, "the state was lost"));
}

TEST(SequenceStateTest, HistoriesTellTextsApart) {
  EXPECT_EQ(HistoryOf(HistoryOf(0, {1, 2}), {3}), HistoryOf(0, {1, 2, 3}));
  EXPECT_NE(HistoryOf(0, {1, 2}), HistoryOf(0, {2, 1}));
  EXPECT_NE(HistoryOf(0, {0}), HistoryOf(0, {0, 0}));
  EXPECT_NE(HistoryOf(0, {}), HistoryOf(0, {0}));
}

}  // namespace
}  // namespace aft::server
