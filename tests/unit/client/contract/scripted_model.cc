#include "tests/unit/client/contract/scripted_model.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/support/proto_text.h"

namespace aft::client::contract {
namespace {

constexpr uint64_t kFingerprint = 0xF1;
constexpr uint64_t kSeed = 7;
constexpr size_t kBigChunk = size_t{256} << 10;
constexpr int64_t kAll = -1;

// Returns how a call ends.
Script ScriptOf(const Call& call) {
  Script script;
  script.status = {static_cast<grpc::StatusCode>(call.code()), call.message()};
  script.trailers = {call.trailers().begin(), call.trailers().end()};
  if (call.has_request_id()) script.request_id = call.request_id();
  if (call.stall()) script.end = Script::End::kStall;
  return script;
}

void AddHandOver(const Call& call, Script& script) {
  const auto add = [&script](const std::string& chunk) {
    script.events.emplace_back().mutable_hand_over()->set_chunk(chunk);
  };
  for (const std::string& chunk : call.hand_over()) add(chunk);
  for (uint32_t i = 0; i < call.big_hand_over(); ++i) add(std::string(kBigChunk, 's'));
}

// The end of a sequence. Each one counts the prompt, because each may be a call of its own.
v1::GenerateResponse FinishedOf(uint32_t length) {
  v1::GenerateResponse event = FinishedEvent(length);
  v1::Usage& usage = *event.mutable_finished()->mutable_usage();
  usage.set_cached_tokens(3);
  usage.set_cache_miss(v1::CACHE_MISS_DIVERGED);
  usage.set_diverged_at(1);
  return event;
}

// Returns two scores of each text in turn, and after its last score the end of the text.
std::vector<v1::ScoreResponse> ScoresOf(const Call& call, const v1::ScoreRequest& request) {
  std::vector<v1::ScoreResponse> events(1);
  v1::ScoreStarted& started = *events.back().mutable_started();
  started.set_fingerprint(call.fingerprint());
  started.set_numerics(call.numerics());
  started.set_exact(request.has_resume() && !call.inexact());
  struct Reading {
    std::string text;
    size_t next;
    double sum;
    bool finished = false;
  };
  const uint32_t unscored = UnscoredOf(request);
  std::vector<Reading> texts;
  for (const std::string& text : TextsOf(request)) {
    texts.push_back({text, unscored + request.resume().scores(), request.resume().logprob()});
  }
  uint32_t left = call.after();
  for (size_t finished = 0; finished < texts.size() && left > 0;) {
    for (size_t index = 0; index < texts.size() && left > 0; ++index) {
      auto& [text, next, sum, ended] = texts[index];
      if (ended) continue;
      v1::ScoreResponse event;
      event.set_index(static_cast<uint32_t>(index));
      event.mutable_chunk()->set_first_index(static_cast<uint32_t>(next));
      for (int k = 0; k < 2 && next < text.size() && left > 0; ++k, ++next, --left) {
        event.mutable_chunk()->add_token_ids(static_cast<uint32_t>(text[next]));
        event.mutable_chunk()->add_logprobs()->set_logprob(ScoreOf(text[next], next));
        sum += ScoreOf(text[next], next);
      }
      if (event.chunk().token_ids_size() > 0) events.push_back(event);
      if (next < text.size() || left == 0) continue;
      event.mutable_finished()->set_scored_tokens(static_cast<uint32_t>(text.size()) - unscored);
      event.mutable_finished()->set_logprob(sum);
      events.push_back(event);
      ended = true;
      ++finished;
      --left;
    }
  }
  return events;
}

}  // namespace

char TokenOf(uint32_t sequence, uint32_t i) {
  return static_cast<char>('a' + (10 * sequence + i) % 26);
}

float ScoreOf(char token, size_t at) {
  return -0.1F * static_cast<float>(token - 'a' + 1) - static_cast<float>(at);
}

std::vector<std::string> TextsOf(const v1::ScoreRequest& request) {
  std::vector<std::string> texts;
  for (const v1::Text& text : request.texts()) texts.push_back(text.text());
  if (texts.empty()) texts.push_back(request.text());
  return texts;
}

uint32_t UnscoredOf(const v1::ScoreRequest& request) {
  if (request.context_tokens() > 0) return request.context_tokens();
  return request.previous().state_id() == "pending" ? 0 : 1;
}

ScriptedModel::ScriptedModel(const Scenario& scenario)
    : scenario_(scenario), texts_(TextsOf(scenario.score()).size()) {
  for (const Call& call : scenario.calls()) {
    std::deque<Call>& calls = calls_[call.has_of_sequence() ? call.of_sequence() : kAll];
    calls.insert(calls.end(), call.times(), call);
  }
  outputs_[0] = scenario.generate().resume();
  scores_ = scenario.score().resume();
}

std::vector<ScriptedModel::Asked> ScriptedModel::asked() const {
  MutexLock lock(mutex_);
  return asked_;
}

std::vector<std::pair<uint32_t, uint32_t>> ScriptedModel::resumed() const {
  MutexLock lock(mutex_);
  auto sorted = resumed_;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

bool ScriptedModel::all_used() const {
  MutexLock lock(mutex_);
  return std::all_of(calls_.begin(), calls_.end(),
                     [](const auto& calls) { return calls.second.empty(); });
}

int ScriptedModel::stalls(int server) const {
  MutexLock lock(mutex_);
  const auto found = stalls_.find(server);
  return found == stalls_.end() ? 0 : found->second;
}

Script ScriptedModel::Answer(const google::protobuf::Message& request, int server) {
  MutexLock lock(mutex_);
  Script script;
  if (const auto* const generate = dynamic_cast<const v1::GenerateRequest*>(&request)) {
    script = Generate(*generate);
  } else if (const auto* const score = dynamic_cast<const v1::ScoreRequest*>(&request)) {
    script = Score(*score);
  } else {
    script = Encode(dynamic_cast<const v1::EncodeRequest&>(request));
  }
  asked_.back().server = server;
  if (script.end == Script::End::kStall) ++stalls_[server];
  return script;
}

Call ScriptedModel::TakeCall(int64_t sequence) {
  std::deque<Call>& calls = calls_[sequence];
  Call call;
  if (calls.empty()) {  // the whole answer
    call.set_after(std::numeric_limits<uint32_t>::max());
    call.set_code(OK);
  } else {
    call = calls.front();
    calls.pop_front();
  }
  if (!call.has_fingerprint()) call.set_fingerprint(kFingerprint);
  if (!call.has_numerics()) {
    // A server does not know that a call for several texts resumes another one. The client compares
    // the numerics.
    call.set_numerics(texts_.size() > 1 ? "numerics" : absl::StrCat("numerics ", asked_.size()));
  }
  return call;
}

// Whether the client asks for a stream that it can resume.
bool ScriptedModel::Resumes() const {
  return !scenario_.options().has_max_resumes() || scenario_.options().max_resumes() > 0;
}

Script ScriptedModel::Generate(v1::GenerateRequest request) {
  const uint32_t several = std::max(scenario_.generate().n(), 1U);
  const bool alone = several > 1 && request.n() == 0;  // one of several sequences
  const uint64_t behind = request.sampling().seed() - seed_;
  const uint32_t sequence = alone && behind < several ? static_cast<uint32_t>(behind) : 0;
  const Call call = TakeCall(alone ? sequence : kAll);
  const size_t number = asked_.size();
  asked_.emplace_back().wanted = WantedOf(request, sequence).ShortDebugString();
  if (request.has_resume()) {
    std::string& state = *request.mutable_resume()->mutable_state();
    asked_.back().state = state.size() > 1024 ? absl::StrCat(state.size(), " bytes") : state;
    state.clear();
  }
  asked_.back().got = request.ShortDebugString();

  Script script = ScriptOf(call);
  if (call.refused()) return script;
  const auto first = static_cast<uint32_t>(request.resume().token_ids_size());
  if (started_) resumed_.emplace_back(sequence, first);
  for (const std::string& event : call.events()) {
    script.events.push_back(FromText<v1::GenerateResponse>(event));
  }
  if (call.events().empty()) {
    v1::GenerateResponse event = StartedEvent(
        request.sampling().has_seed() ? request.sampling().seed() : kSeed, call.fingerprint());
    event.mutable_started()->set_model_version(absl::StrCat(number));
    event.mutable_started()->set_numerics(call.numerics());
    event.mutable_started()->set_resume_id(absl::StrCat("resume ", number));
    event.mutable_started()->set_exact(request.has_resume() && !call.inexact());
    script.events.push_back(event);
    for (uint32_t i = first; i <= scenario_.length(); ++i) {
      for (uint32_t s = 0; s < std::max(request.n(), 1U); ++s) {
        const bool each = static_cast<int>(s) < call.sent_size();
        if (i - first >= (each ? call.sent(static_cast<int>(s)) : call.after())) continue;
        script.events.push_back(
            i == scenario_.length()
                ? FinishedOf(i)
                : DeltaEvent(i, std::string(1, TokenOf(alone ? sequence : s, i))));
        script.events.back().set_sequence(s);
      }
    }
    AddHandOver(call, script);
  }
  for (const v1::GenerateResponse& event : script.events) {
    Keep(event, alone ? sequence : event.sequence(), alone);
  }
  return script;
}

v1::GenerateRequest ScriptedModel::WantedOf(const v1::GenerateRequest& got, uint32_t sequence) {
  v1::GenerateRequest wanted = scenario_.generate();
  if (Resumes()) wanted.set_resumable(true);
  if (!started_) return wanted;
  if (finished_.count(sequence) > 0) return {};
  v1::Resume& output = outputs_[sequence];
  // Tokens that were on their way when a connection broke may be lost.
  if (scenario_.then() == CUT && output.token_ids_size() > got.resume().token_ids_size()) {
    output.mutable_token_ids()->Truncate(got.resume().token_ids_size());
  }
  wanted.clear_n();
  if (sequence > 0) wanted.clear_prompt_logprobs();
  wanted.mutable_sampling()->set_seed(seed_ + sequence);
  *wanted.mutable_resume() = output;
  return wanted;
}

void ScriptedModel::Keep(const v1::GenerateResponse& said, uint32_t sequence, bool alone) {
  if (said.has_started()) {
    if (!started_) seed_ = said.started().seed();
    started_ = true;
    const uint32_t end = alone ? sequence + 1 : std::max(scenario_.generate().n(), 1U);
    for (uint32_t s = sequence; s < end; ++s) {
      outputs_[s].set_fingerprint(said.started().fingerprint());
      outputs_[s].set_numerics(said.started().numerics());
      outputs_[s].set_resume_id(said.started().resume_id());
    }
  }
  outputs_[sequence].mutable_token_ids()->MergeFrom(said.delta().token_ids());
  if (said.has_finished()) finished_.insert(sequence);
}

Script ScriptedModel::Score(const v1::ScoreRequest& request) {
  const Call call = TakeCall(kAll);
  Asked& asked = asked_.emplace_back();
  asked.wanted = WantedScores().ShortDebugString();
  asked.got = request.ShortDebugString();
  Script script = ScriptOf(call);
  if (call.refused()) return script;
  uint32_t had = 0;
  std::vector<size_t> places;  // index in the scenario of each text of the request
  for (size_t i = 0; i < texts_.size(); ++i) {
    had += texts_[i].scores;
    if (!texts_[i].finished) places.push_back(i);
  }
  if (started_) resumed_.emplace_back(0, had);

  std::vector<v1::ScoreResponse> events;
  for (const std::string& event : call.events()) {
    events.push_back(FromText<v1::ScoreResponse>(event));
  }
  if (call.events().empty()) events = ScoresOf(call, request);
  for (const v1::ScoreResponse& event : events) {
    if (event.index() < places.size()) Keep(event, texts_[places[event.index()]]);
    script.other_events.push_back(std::make_shared<v1::ScoreResponse>(event));
  }
  return script;
}

v1::ScoreRequest ScriptedModel::WantedScores() const {
  v1::ScoreRequest wanted = scenario_.score();
  if (Resumes()) wanted.set_resumable(true);
  if (started_ && wanted.texts().empty()) *wanted.mutable_resume() = scores_;
  for (int i = wanted.texts_size() - 1; i >= 0; --i) {
    if (texts_[static_cast<size_t>(i)].finished) wanted.mutable_texts()->DeleteSubrange(i, 1);
  }
  return wanted;
}

void ScriptedModel::Keep(const v1::ScoreResponse& said, Text& text) {
  if (said.has_started()) {
    started_ = true;
    scores_.set_fingerprint(said.started().fingerprint());
    scores_.set_numerics(said.started().numerics());
  }
  if (said.has_chunk()) {
    const uint32_t first = said.chunk().first_index() - UnscoredOf(scenario_.score());
    text.scores = std::max(text.scores, first + said.chunk().token_ids_size());
    scores_.set_scores(text.scores);
    double sum = scores_.logprob();
    for (const v1::TokenLogprobs& score : said.chunk().logprobs()) sum += score.logprob();
    scores_.set_logprob(sum);
  }
  if (said.has_finished()) text.finished = true;
}

Script ScriptedModel::Encode(const v1::EncodeRequest& request) {
  const Call call = TakeCall(kAll);
  asked_.push_back({request.ShortDebugString(), scenario_.encode().ShortDebugString(), ""});
  Script script = ScriptOf(call);
  for (const std::string& event : call.events()) {
    script.other_events.push_back(
        std::make_shared<v1::EncodeResponse>(FromText<v1::EncodeResponse>(event)));
  }
  return script;
}

}  // namespace aft::client::contract
