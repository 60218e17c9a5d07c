// Requests that continue from states of earlier ones, from the message to the steps of the model:
// decoded, given the states that they name, planned and run to the end. For every input the process
// survives, the runner's rules hold, and a state does not change the tokens that follow. Input: a
// byte that chooses the engine; then requests, in sections. A section is a letter and a message in
// protobuf's text format: 'g' a GenerateRequest, 's' a ScoreRequest, 'f' a State whose tokens,
// bytes and ttl_ms replace numbers of the last state, as if someone had forged them.
// `previous.state_id` and `resume.resume_id` are numbers of the states that the requests before
// have stored.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "aft/v1/inference.pb.h"
#include "base/check.h"
#include "google/protobuf/text_format.h"
#include "prometheus/registry.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/score_codec.h"
#include "server/engine/generate_engine.h"
#include "server/engine/resumption.h"
#include "tests/fuzz/target.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/recording_sink.h"

namespace aft::fuzz {

// Engines and their metrics are made once. A request of a few bytes may ask for kMostTokens.
const MemoryBound kMemory = {.fixed = 1 << 22, .per_byte = 512};

namespace {

using server::GenerationRequest;
using server::Outcome;
using server::RecordingSink;
using server::ScoringRequest;
using server::SequenceState;
using State = std::shared_ptr<const SequenceState>;

constexpr size_t kMostSections = 8;
constexpr int32_t kMostTokens = 24;

// A model in service, and the states of one input.
class World {
 public:
  World(int64_t max_seq_len, int max_in_flight) {
    FakeModelRunner::Options fake;
    fake.max_seq_len = max_seq_len;
    fake.max_steps_in_flight = max_in_flight;
    server::EngineOptions options;
    options.model.name = "m";
    options.model.max_step_tokens = fake.max_step_tokens;
    options.health.max_failed_steps = 1;  // a step that fails is a finding
    auto runner = std::make_unique<FakeModelRunner>(fake, control_);
    model_.config = options.model;
    model_.info = runner->info();
    model_.tokenizer = std::make_shared<FakeTokenizer>();
    auto engine =
        server::GenerateEngine::Create(options, std::move(runner), model_.tokenizer, metrics_);
    AFT_CHECK(engine.ok());
    engine_ = *std::move(engine);
    limits_.max_max_tokens = kMostTokens;
    limits_.default_max_tokens = 3;
    limits_.max_prompt_tokens = 256;
    control_->DropInputs();
  }

  void Begin() {
    states_.clear();
    forged_.clear();
  }

  void Run(absl::string_view section) {
    if (section.empty()) return;
    const std::string text(section.substr(1));
    if (section[0] == 's') return Score(Parsed<v1::ScoreRequest>(text));
    if (section[0] == 'f') return Forge(Parsed<v1::State>(text));
    Generate(Parsed<v1::GenerateRequest>(text));
  }

 private:
  template <typename Message>
  static Message Parsed(const std::string& text) {
    Message message;
    google::protobuf::TextFormat::Parser parser;
    parser.SetRecursionLimit(16);
    // protobuf checks strings for UTF-8 only in the binary format, not in text.
    if (!parser.ParseFromString(text, &message) ||
        !message.ParseFromString(message.SerializeAsString())) {
      message.Clear();
    }
    return message;
  }

  // Returns null if there is no such state.
  const State* Find(const std::string& number) const {
    size_t index = 0;
    return absl::SimpleAtoi(number, &index) && index < states_.size() ? &states_[index] : nullptr;
  }
  bool IsForged(const State& state) const {
    return std::find(forged_.begin(), forged_.end(), state) != forged_.end();
  }

  // Returns nullopt if the message is refused, or if its `previous` names no state.
  template <typename Codec>
  auto Decode(Codec& codec, const typename Codec::Request& message) const {
    typename Codec::Response started;
    auto decoded = codec.Decode(message, limits_, model_, *started.mutable_started());
    using Request = typename decltype(decoded)::value_type;
    if (Refused(decoded.status())) return std::optional<Request>();
    decoded->store = message.has_store();
    if (message.has_previous()) {
      const State* const previous = Find(message.previous().state_id());
      if (previous == nullptr) return std::optional<Request>();
      decoded->previous = *previous;
    }
    return std::optional<Request>(*std::move(decoded));
  }

  // The result of an accepted request. The state that it stored gets the next number.
  struct Answer {
    std::vector<TokenId> tokens;
    Outcome outcome;
    State state;
  };
  Answer Wait(RecordingSink& sink, bool forged) const {
    Answer answer;
    answer.outcome = sink.Wait();
    const absl::Status& status = answer.outcome.status;
    // The runner may be the first to detect a forged state. Then only that request fails.
    AFT_CHECK(status.ok() || (forged && absl::IsInternal(status)));
    AFT_CHECK(control_->violations().empty());
    for (const server::TokenDelta& delta : sink.parts()) {
      for (const SampledToken& token : delta.tokens) answer.tokens.push_back(token.id);
    }
    if (answer.outcome.turn == nullptr) return answer;
    answer.state = std::make_shared<const SequenceState>(MakeState(*answer.outcome.turn).value());
    return answer;
  }
  void Keep(const Answer& answer, bool forged) {
    if (answer.state == nullptr) return;
    states_.push_back(answer.state);
    if (forged) forged_.push_back(answer.state);
  }

  static bool Refused(const absl::Status& status) {
    if (status.ok()) return false;
    AFT_CHECK(IsMessage(status.message()));
    AFT_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status));
    return true;
  }

  void Generate(const v1::GenerateRequest& message) {
    server::GenerateCodec codec;
    std::optional<GenerationRequest> decoded = Decode(codec, message);
    if (!decoded.has_value()) return;
    GenerationRequest request = *std::move(decoded);
    bool forged = IsForged(request.previous);
    if (const State* start = Find(message.resume().resume_id());
        start != nullptr && server::IsWithin(**start, request, model_.info)) {
      request.start = *start;
      forged = forged || IsForged(*start);
    }
    if (codec.sequences() > 1) return GenerateGroup(request, codec.sequences(), forged);
    const auto sink = std::make_shared<RecordingSink>();
    if (Refused(engine_->Generate(request, sink).status())) return;
    const Answer answer = Wait(*sink, forged);
    if (request.start != nullptr && !forged) ExpectSameWithoutStart(request, answer);
    Keep(answer, forged);
  }

  void ExpectSameWithoutStart(GenerationRequest request, const Answer& answer) const {
    request.start = nullptr;
    const auto sink = std::make_shared<RecordingSink>();
    AFT_CHECK(engine_->Generate(request, sink).ok());
    const Answer expected = Wait(*sink, /*forged=*/false);
    AFT_CHECK(answer.tokens == expected.tokens);
    AFT_CHECK((answer.state == nullptr) == (expected.state == nullptr));
    if (answer.state == nullptr) return;
    AFT_CHECK(answer.state->snapshot == expected.state->snapshot);
    AFT_CHECK(answer.state->history == expected.state->history);
    AFT_CHECK(answer.state->pending == expected.state->pending);
    AFT_CHECK(answer.state->outputs == expected.state->outputs);
  }

  void GenerateGroup(const GenerationRequest& request, uint32_t answers, bool forged) {
    std::vector<std::shared_ptr<RecordingSink>> sinks(answers);
    for (auto& sink : sinks) sink = std::make_shared<RecordingSink>();
    if (Refused(engine_->GenerateGroup(request, {sinks.begin(), sinks.end()}).status())) return;
    bool leader_lost = false;
    for (const auto& sink : sinks) {
      // If the first sequence fails, the sequences that follow it fail too.
      if (leader_lost) {
        AFT_CHECK(!sink->Wait().status.ok());
        continue;
      }
      const Answer answer = Wait(*sink, forged);
      leader_lost = !answer.outcome.status.ok();
      Keep(answer, forged);
    }
  }

  void Score(const v1::ScoreRequest& message) {
    server::ScoreCodec codec;
    std::optional<ScoringRequest> request = Decode(codec, message);
    if (!request.has_value()) return;
    const bool forged = IsForged(request->previous);
    std::vector<ScoringRequest> requests = codec.Split(*std::move(request));
    std::vector<std::shared_ptr<RecordingSink>> sinks(requests.size());
    for (auto& sink : sinks) sink = std::make_shared<RecordingSink>();
    if (Refused(engine_->ScoreTexts(std::move(requests), {sinks.begin(), sinks.end()}).status())) {
      return;
    }
    for (const auto& sink : sinks) Keep(Wait(*sink, forged), forged);
  }

  // Adds a state that this server never made, such as an older version with the same key could
  // make.
  void Forge(const v1::State& numbers) {
    if (states_.empty()) return;
    SequenceState state = *states_.back();
    if (numbers.tokens() != 0) state.tokens = static_cast<int64_t>(numbers.tokens());
    if (numbers.bytes() != 0) state.outputs = numbers.bytes();
    if (numbers.ttl_ms() != 0) state.pending = static_cast<TokenId>(numbers.ttl_ms()) - 2;
    states_.push_back(std::make_shared<const SequenceState>(std::move(state)));
    forged_.push_back(states_.back());
  }

  prometheus::Registry registry_;
  server::ModelMetrics metrics_{registry_, "m"};
  const std::shared_ptr<FakeModelControl> control_ = std::make_shared<FakeModelControl>();
  server::ServedModel model_;
  server::LimitsConfig limits_;
  std::unique_ptr<server::GenerateEngine> engine_;
  std::vector<State> states_;
  std::vector<State> forged_;
};

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft::fuzz;
  [[maybe_unused]] static google::protobuf::LogHandler* const before =
      google::protobuf::SetLogHandler(nullptr);
  static World* const worlds[] = {new World(0, 1), new World(0, 2), new World(20, 1),
                                  new World(20, 2)};
  if (size < 1) return;
  World& world = *worlds[data[0] % 4];
  world.Begin();
  for (const absl::string_view section : Sections(AsText(data + 1, size - 1), kMostSections)) {
    world.Run(section);
  }
}
