// Bad words of several tokens, in streams of every kind.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_resume_fixture.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EngineBadWordsTest : public EngineResumeTest {
 protected:
  EngineBadWordsTest() { model.vocab_size = 5; }  // few tokens, so that words occur

  std::vector<TokenId> SmallText(int64_t length) { return RandomText(length, model.vocab_size); }

  static std::shared_ptr<const TokenSequences> Shared(TokenSequences words) {
    return std::make_shared<const TokenSequences>(std::move(words));
  }
  // Words of 2 to 4 tokens. None of them ends with token 4, so that this token is always left.
  std::shared_ptr<const TokenSequences> RandomWords() {
    TokenSequences words(static_cast<size_t>(1 + random.Below(8)));
    for (std::vector<TokenId>& word : words) {
      word = SmallText(1 + random.Below(3));
      word.push_back(static_cast<TokenId>(random.Below(4)));
    }
    return Shared(std::move(words));
  }

  GenerationRequest Random(const State& previous = nullptr) {
    GenerationRequest request =
        Request(SmallText(1 + random.Below(20)), static_cast<int32_t>(1 + random.Below(60)));
    request.previous = previous;
    request.store = random.Below(2) == 0;
    if (random.Below(3) == 0) request.sampling.repetition_penalty = 1.5F;
    if (random.Below(4) != 0) request.bad_words = RandomWords();
    RandomOwner(request);
    return request;
  }

  // The output by the definition, without an engine. `text`: the text before the request's prompt.
  static std::vector<TokenId> Naive(const GenerationRequest& request, FakeModelRunner::Text text,
                                    uint64_t sequence = 0) {
    text.Read(request.prompt);
    text.BeginOutput();
    SamplingParams sampling = request.sampling;
    sampling.seed += sequence;
    return text.Sample(sampling, request.stop.max_tokens,
                       request.bad_words != nullptr ? *request.bad_words : TokenSequences());
  }
  std::vector<TokenId> Naive(const GenerationRequest& request, uint64_t sequence = 0) const {
    return Naive(request, FakeModelRunner::Text(model), sequence);
  }
};

TEST_F(EngineBadWordsTest, NeverComeWhateverElseIsInTheBatch) {
  model.slots = 3;
  model.max_step_tokens = 8;
  Start();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<GenerationRequest, Sink>> all;
    for (int i = 0; i < 8; ++i) {
      const GenerationRequest request = Random();
      all.emplace_back(request, Submit(request).sink);
    }
    for (const auto& [request, sink] : all) {
      ASSERT_EQ(sink->Wait().status, absl::OkStatus());
      const std::vector<TokenId> output = sink->tokens();
      ASSERT_EQ(output, Naive(request));
      if (request.bad_words == nullptr) continue;
      for (const std::vector<TokenId>& word : *request.bad_words) {
        ASSERT_EQ(std::search(output.begin(), output.end(), word.begin(), word.end()),
                  output.end());
      }
    }
  }
}

TEST_F(EngineBadWordsTest, AResumedStreamCountsTheOutputBefore) {
  model.max_step_tokens = 8;  // most texts take several steps
  Start();
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    GenerationRequest request = Random();
    const auto points = std::make_shared<ResumePointRecorder>();
    request.survival.sink = points;
    request.survival.interval = 1 + random.Below(12);
    const Answer whole = Run(request);
    ASSERT_EQ(whole.tokens, Naive(request));
    request.survival = {};
    const auto size = static_cast<int64_t>(whole.tokens.size());
    const auto cut = static_cast<size_t>(random.Below(size));
    ExpectGoesOn(Run(Resumed(request, whole.tokens, cut)), whole, cut);
    // It also continues from a state that has read a part of the output.
    std::vector<TokenId> outputs;
    for (const ResumePoint& point : points->points()) {
      outputs.insert(outputs.end(), point.outputs.begin(), point.outputs.end());
      const size_t more = whole.tokens.size() - outputs.size();
      const size_t from =
          outputs.size() + static_cast<size_t>(random.Below(static_cast<int64_t>(more) + 1));
      GenerationRequest resumed = Resumed(request, whole.tokens, from);
      resumed.start = StateOf(request, point, outputs);
      ASSERT_TRUE(IsWithin(*resumed.start, resumed, info()));
      ExpectGoesOn(Run(resumed), whole, from);
    }
  }
}

TEST_F(EngineBadWordsTest, EachAnswerOfAGroupKeepsToItsOwnOutput) {
  Start();
  for (int round = 0; round < 20; ++round) {
    GenerationRequest request = Random();
    request.client = AnonymousClient();
    request.service_class = ServiceClass::kNormal;
    const std::vector<Sink> sinks = SubmitGroup(request, 2).sinks;
    for (size_t i = 0; i < sinks.size(); ++i) {
      ASSERT_EQ(sinks[i]->Wait().status, absl::OkStatus());
      ASSERT_EQ(sinks[i]->tokens(), Naive(request, i));
    }
  }
}

TEST_F(EngineBadWordsTest, FormerTurnsAndPromptsDoNotCount) {
  Start();
  for (int round = 0; round < 20; ++round) {
    GenerationRequest first = Random();
    first.store = true;
    const Answer before = Run(first);
    FakeModelRunner::Text text(model);
    text.Read(first.prompt);
    text.Replay(before.tokens);
    GenerationRequest second = Random(StateOf(before.outcome));
    if (random.Below(2) == 0) second.prompt.clear();  // it continues the answer
    ASSERT_EQ(Run(second).tokens, Naive(second, text));
  }
}

// Without bad words the model would write token 1 forever.
TEST_F(EngineBadWordsTest, WordsThatLeaveNoTokenEndOnlyTheirOwnOutput) {
  model.next_token = [](uint64_t, int64_t) { return TokenId{1}; };
  Start();
  GenerationRequest request = Request({3}, 10);
  auto rules = std::make_shared<LogitRules>();
  rules->rules = {{.id = 1}, {.id = 2}};
  rules->only_these = true;
  request.sampling.rules = rules;
  request.bad_words = Shared({{1, 1, 1}, {1, 1, 2}});
  const Accepted other = Submit(Request({4}, 10));
  const Answer answer = Run(request);
  EXPECT_THAT(answer.tokens, ElementsAre(1, 1));
  EXPECT_THAT(answer.outcome.status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sampling.bad_words: leave no token to sample as number 2")));
  EXPECT_EQ(metrics.failures(EngineFailure::kNotFinite).Value(), 0);
  EXPECT_EQ(other.sink->Wait().status, absl::OkStatus());
  // A model without a distribution is a different error.
  request.bad_words = Shared({{1, 1, 1}});
  EXPECT_THAT(Run(request).tokens, ElementsAre(1, 1, 2, 1, 1, 2, 1, 1, 2, 1));
  engine.reset();
  model.not_finite = [](uint64_t, uint64_t output_index) { return output_index == 2; };
  Start();
  EXPECT_THAT(Run(request).outcome.status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
  EXPECT_EQ(metrics.failures(EngineFailure::kNotFinite).Value(), 1);
}

TEST_F(EngineBadWordsTest, AStreamKeepsItsWordsWhileItIsParked) {
  model.slots = 1;
  options.model.parking_bytes = 1 << 20;
  StartHeld();
  GenerationRequest request = Request(SmallText(4), 50);
  request.service_class = ServiceClass::kBatch;
  request.bad_words = Shared({{0, 1}, {1, 2, 3}, {3, 3}, {2, 0}});
  const Accepted parked = Submit(request);
  control->RunSteps(6);
  GenerationRequest better = Request(SmallText(3), 5);
  better.service_class = ServiceClass::kInteractive;
  const Accepted first = Submit(better);
  control->Resume();
  EXPECT_EQ(first.sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(parked.sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(parked.sink->tokens(), Naive(request));
  EXPECT_EQ(metrics.parks.Value(), 1);
}

}  // namespace
}  // namespace aft::server
