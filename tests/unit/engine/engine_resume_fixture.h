#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "server/engine/resumption.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/scheduling/random_rules.h"

namespace aft::server {

// Keeps every resume point that it is ready for.
class ResumePointRecorder : public ResumePointSink {
 public:
  bool Ready() override {
    MutexLock lock(mutex_);
    ++asked_;
    return ready_;
  }
  void OnResumePoint(ResumePoint point) override {
    MutexLock lock(mutex_);
    points_.push_back(std::move(point));
  }

  void SetReady(bool ready) {
    MutexLock lock(mutex_);
    ready_ = ready;
  }
  int asked() const {
    MutexLock lock(mutex_);
    return asked_;
  }
  std::vector<ResumePoint> points() const {
    MutexLock lock(mutex_);
    return points_;
  }

 private:
  mutable Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = true;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ResumePoint> points_ ABSL_GUARDED_BY(mutex_);
};

class EngineResumeTest : public EngineTest {
 protected:
  using EngineTest::StateOf;

  // The answer to a request.
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<std::string> texts;  // came with each token
    std::string last_text;           // came without a token
    Outcome outcome;

    std::string text(size_t from = 0) const {
      std::string all;
      for (size_t i = from; i < texts.size(); ++i) all += texts[i];
      return all + last_text;
    }
  };
  static Answer Read(const Sink& sink, size_t resumed = 0) {
    Answer answer;
    answer.outcome = sink->Wait();
    for (const TokenDelta& delta : sink->parts()) {
      EXPECT_EQ(delta.first_index, resumed + answer.tokens.size());
      if (delta.tokens.empty()) {
        answer.last_text += delta.text;
        continue;
      }
      EXPECT_EQ(delta.tokens.size(), 1U);
      answer.tokens.push_back(delta.tokens.front().id);
      answer.texts.push_back(delta.text);
    }
    return answer;
  }
  Answer Run(GenerationRequest request) {
    const size_t resumed = request.resumed;
    return Read(Submit(std::move(request)).sink, resumed);
  }

  // Does the same as Run. REQUIRES: no other request runs, so that steps read only its tokens.
  Answer RunAlone(GenerationRequest request) {
    const double before = metrics.prompt_tokens.Value();
    Answer answer = Run(std::move(request));
    const double read = metrics.prompt_tokens.Value() - before;
    EXPECT_EQ(answer.outcome.computed_tokens, read + static_cast<double>(answer.tokens.size()));
    return answer;
  }

  // The request that continues after the first `count` tokens of the output.
  static GenerationRequest Resumed(GenerationRequest request, const std::vector<TokenId>& output,
                                   size_t count) {
    request.prompt.insert(request.prompt.end(), output.begin(),
                          output.begin() + static_cast<std::ptrdiff_t>(count));
    request.resumed = count;
    return request;
  }

  GenerationRequest RandomRequest(const State& previous) {
    GenerationRequest request =
        Request(RandomText(1 + random.Below(20)), static_cast<int32_t>(1 + random.Below(40)));
    request.previous = previous;
    request.store = random.Below(2) == 0;
    if (random.Below(2) == 0) request.sampling.repetition_penalty = 1.5F;
    if (random.Below(3) == 0) request.sampling.presence_penalty = 0.5F;
    if (random.Below(3) == 0) request.sampling.frequency_penalty = 0.5F;
    if (random.Below(2) == 0) request.sampling.penalty_decay = 0.9F;
    request.stop.ignore_eos = random.Below(2) == 0;
    RandomOwner(request);
    return request;
  }
  // Gives the request random ends, some of which it meets somewhere in `output`.
  void RandomStops(const std::vector<TokenId>& output, GenerationRequest& request) {
    const auto size = static_cast<int64_t>(output.size());
    if (size > 0 && random.Below(3) == 0) {
      request.stop.token_ids = {output[static_cast<size_t>(random.Below(size))], 7};
    }
    if (size > 0 && random.Below(2) == 0) {
      const int64_t first = random.Below(size);
      std::string text;
      for (int64_t i = first; i < std::min(size, first + 3); ++i) {
        absl::StrAppend(&text, tokenizer->TokenBytes(output[static_cast<size_t>(i)]));
      }
      request.stop.strings = {text + "z", text};
      request.stop.include_stop_string = random.Below(2) == 0;
    }
    if (random.Below(2) == 0) return;
    std::vector<TokenId> ends = request.stop.token_ids;
    if (!request.stop.ignore_eos) ends.push_back(tokenizer->eos_id());
    request.sampling.rules = RandomRules(random, model.vocab_size, ends);
    request.stop.min_tokens = static_cast<int32_t>(random.Below(request.stop.max_tokens + 1));
  }

  void ExpectGoesOn(const Answer& rest, const Answer& whole, size_t from) {
    const auto first = whole.tokens.begin() + static_cast<std::ptrdiff_t>(from);
    EXPECT_EQ(rest.tokens, std::vector<TokenId>(first, whole.tokens.end()));
    EXPECT_EQ(rest.text(), whole.text(from));
    const Outcome& outcome = rest.outcome;
    const Outcome& expected = whole.outcome;
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.reason, expected.reason);
    EXPECT_EQ(outcome.limit, expected.limit);
    EXPECT_EQ(outcome.stop_string, expected.stop_string);
    EXPECT_EQ(outcome.stop_token_id, expected.stop_token_id);
    EXPECT_EQ(outcome.usage.prompt_tokens, expected.usage.prompt_tokens);
    EXPECT_EQ(outcome.usage.generated_tokens, expected.usage.generated_tokens);
    EXPECT_EQ(outcome.usage.resumed_tokens, from);
    ExpectSameTurn(outcome, expected);
  }

  // The state of the resume point, which comes after the request's prompt and `outputs`.
  State StateOf(const GenerationRequest& request, const ResumePoint& point,
                std::vector<TokenId> outputs) const {
    TurnEnd turn;
    turn.previous = request.previous;
    turn.model = model.fingerprint;
    turn.state = point.state;
    turn.text = request.prompt;
    turn.outputs = std::move(outputs);
    turn.last_is_pending = true;
    return std::make_shared<const SequenceState>(MakeState(std::move(turn)).value());
  }
  ModelInfo info() const {
    ModelInfo facts;
    facts.vocab_size = model.vocab_size;
    facts.fingerprint = model.fingerprint;
    return facts;
  }

  absl::Status RefusedOutput(GenerationRequest request, const std::vector<TokenId>& output) {
    return Refused(Resumed(std::move(request), output, output.size()));
  }
};

}  // namespace aft::server
