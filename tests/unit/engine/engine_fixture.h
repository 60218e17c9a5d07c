#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/engine/generate_engine.h"
#include "server/observability/metrics.h"
#include "tests/property/random_inputs.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/manual_clock.h"
#include "tests/support/recording_sink.h"
#include "tests/support/same_state.h"
#include "tests/support/status_matchers.h"

namespace aft::server {

// The base of the tests of all engines: a clock that the test moves, metrics, and ways to submit
// requests.
template <typename Engine, typename PartSink>
class AnyEngineTest : public ::testing::Test {
 protected:
  using Sink = std::shared_ptr<PartSink>;

  AnyEngineTest() {
    options.model.name = "fake";
    options.clock = [this] { return clock.Now(); };
  }

  // A request with a name of its own that arrives now.
  template <typename Request>
  Request Arriving() {
    Request request;
    request.id = "request-" + std::to_string(++arrived);
    request.arrival = clock.Now();
    return request;
  }

  struct Accepted {
    RequestHandle handle;
    Sink sink;
  };
  // REQUIRES: the engine accepts it.
  template <typename Request>
  Accepted Submit(Request request, Sink sink = std::make_shared<PartSink>()) {
    const auto handle = Offer(std::move(request), sink);
    AFT_CHECK(handle.ok());
    return {*handle, std::move(sink)};
  }
  template <typename Request>
  absl::Status Refused(Request request) {
    const auto sink = std::make_shared<PartSink>();
    const auto handle = Offer(std::move(request), sink);
    EXPECT_FALSE(sink->finished());
    return handle.status();
  }

  static double SumOf(const prometheus::Histogram& histogram) {
    return histogram.Collect().histogram.sample_sum;
  }

  static std::shared_ptr<const Client> NamedClient(const std::string& name) {
    Client client;
    client.name = name;
    return std::make_shared<const Client>(client);
  }

  EngineOptions options;
  const std::shared_ptr<const Client> client_b = NamedClient("b");  // besides the anonymous one
  ManualClock clock;
  prometheus::Registry registry;
  ModelMetrics metrics{registry, "fake"};
  std::unique_ptr<Engine> engine;
  uint64_t arrived = 0;

 private:
  absl::StatusOr<RequestHandle> Offer(GenerationRequest request, const Sink& sink) {
    return engine->Generate(std::move(request), sink);
  }
  absl::StatusOr<RequestHandle> Offer(ScoringRequest request, const Sink& sink) {
    return engine->ScoreTexts({std::move(request)}, {sink});
  }
  absl::StatusOr<RequestHandle> Offer(EncodingRequest request, const Sink& sink) {
    return engine->EncodeTexts({std::move(request)}, {sink});
  }
};

// An engine over a fake model. Every test ends by checking that the engine kept the rules of
// model_runner.h. The programs run twice: with one step at a time, as a CPU runs them, and with
// AFT_STEPS_IN_FLIGHT=2, as a GPU does.
class EngineTest : public AnyEngineTest<GenerateEngine, RecordingSink> {
 protected:
  using State = std::shared_ptr<const SequenceState>;

  EngineTest() {
    const char* in_flight = std::getenv("AFT_STEPS_IN_FLIGHT");
    if (in_flight != nullptr) model.max_steps_in_flight = std::atoi(in_flight);
  }

  // Starts the engine; change `model` and `options` before.
  void Start() {
    options.model.max_step_tokens = model.max_step_tokens;
    auto created = GenerateEngine::Create(
        options, std::make_unique<FakeModelRunner>(model, control), tokenizer, metrics);
    ASSERT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  // Like Start, but no step runs before the test allows it.
  void StartHeld() {
    Start();
    control->Hold();
  }

  void TearDown() override {
    control->Resume();
    engine.reset();
    EXPECT_THAT(control->violations(), ::testing::IsEmpty());
    EXPECT_EQ(metrics.slots_used.Value(), 0);
  }

  GenerationRequest Request(std::vector<TokenId> prompt, int32_t max_tokens) {
    auto request = Arriving<GenerationRequest>();
    request.prompt = std::move(prompt);
    request.sampling.seed = arrived;
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eos = true;
    return request;
  }
  ScoringRequest Score(std::vector<TokenId> text) {
    auto request = Arriving<ScoringRequest>();
    request.text = std::move(text);
    return request;
  }

  std::vector<TokenId> RandomText(int64_t length, int64_t below = 256) {
    std::vector<TokenId> text(static_cast<size_t>(length));
    for (TokenId& token : text) token = static_cast<TokenId>(random.Below(below));
    return text;
  }
  template <typename AnyRequest>
  void RandomOwner(AnyRequest& request) {
    request.service_class = static_cast<ServiceClass>(random.Below(3));
    request.client = random.Below(2) == 0 ? client_b : AnonymousClient();
  }

  // A group is several answers to one prompt.
  struct Group {
    RequestHandle handle;  // of the first answer
    std::vector<Sink> sinks;

    std::vector<absl::StatusCode> Codes() const {
      std::vector<absl::StatusCode> codes;
      for (const Sink& sink : sinks) codes.push_back(sink->Wait().status.code());
      return codes;
    }
  };
  static std::vector<Sink> Sinks(size_t count) {
    std::vector<Sink> sinks(count);
    for (Sink& sink : sinks) sink = std::make_shared<RecordingSink>();
    return sinks;
  }
  // REQUIRES: the engine accepts it.
  Group SubmitGroup(const GenerationRequest& request, std::vector<Sink> sinks) {
    const auto handle = engine->GenerateGroup(request, {sinks.begin(), sinks.end()});
    AFT_CHECK(handle.ok());
    return {*handle, std::move(sinks)};
  }
  Group SubmitGroup(const GenerationRequest& request, size_t count) {
    return SubmitGroup(request, Sinks(count));
  }

  // Returns the state that a request left. REQUIRES: it left one.
  static State StateOf(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, absl::OkStatus());
    AFT_CHECK(outcome.turn != nullptr);
    return std::make_shared<const SequenceState>(MakeState(*outcome.turn).value());
  }
  // Expects that both left the same state, or that neither left one.
  static void ExpectSameTurn(const Outcome& a, const Outcome& b) {
    ASSERT_EQ(a.turn != nullptr, b.turn != nullptr);
    if (a.turn != nullptr) ExpectSameState(*StateOf(a), *StateOf(b));
  }

  // The state of `previous` and `text`, of which the last `outputs` tokens were sampled. The model
  // has consumed all of it, or, with `pending`, all but the last token. REQUIRES: it has consumed
  // a token.
  State StateBehind(State previous, std::vector<TokenId> text, size_t outputs, bool pending) {
    GenerationRequest request = Request(text, 1);
    request.previous = std::move(previous);
    request.store = true;
    // An output that a stop token ends at once has no token, and leaves nothing pending.
    for (TokenId id = 0; id < model.vocab_size; ++id) request.stop.token_ids.push_back(id);
    if (pending) request.prompt.pop_back();
    const std::shared_ptr<TurnEnd> end = Submit(std::move(request)).sink->Wait().turn;
    AFT_CHECK(end != nullptr);
    const auto first_output = text.end() - static_cast<std::ptrdiff_t>(outputs);
    end->outputs.assign(first_output, text.end());
    end->text.assign(text.begin(), first_output);
    end->last_is_pending = pending;
    end->ended_by_token = false;  // it is a state within a text
    return std::make_shared<const SequenceState>(MakeState(*end).value());
  }

  // The output that the request must give, whatever else is in the batch.
  std::vector<TokenId> Expected(const GenerationRequest& request) const {
    return FakeModelRunner::Generate(model, request.prompt, request.sampling,
                                     request.stop.max_tokens);
  }

  // Expects that a new request is served, whatever happened before.
  void ExpectServes() {
    const GenerationRequest request = Request({5, 6, 7}, 4);
    ExpectServed(Submit(request).sink, request);
  }
  void ExpectServed(const Sink& sink, const GenerationRequest& request) const {
    EXPECT_EQ(sink->Wait().status, absl::OkStatus());
    EXPECT_EQ(sink->tokens(), Expected(request));
  }

  std::string MetricsPage() const {
    return prometheus::TextSerializer().Serialize(registry.Collect());
  }

  TestRandom random;
  FakeModelRunner::Options model;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<FakeTokenizer>();
  std::shared_ptr<FakeModelControl> control = std::make_shared<FakeModelControl>();
};

}  // namespace aft::server
