#include "server/engine/generate_engine.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/engine/check_output.h"
#include "server/engine/check_requests.h"
#include "server/engine/generation_group.h"
#include "server/engine/scheduler_options.h"
#include "server/engine/token_bytes.h"
#include "server/observability/log.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

absl::StatusOr<std::unique_ptr<GenerateEngine>> GenerateEngine::Create(
    const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
    std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics) {
  const int64_t step_tokens = options.model.max_step_tokens;
  if (runner->slots() < 1) return absl::InvalidArgumentError("slots: must be at least 1");
  if (step_tokens <= runner->slots()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_step_tokens: ", step_tokens, " must be at least slots + 1 = ", runner->slots() + 1,
        ", so that prompts advance alongside all decodes"));
  }
  if (step_tokens > runner->max_step_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_step_tokens: ", step_tokens, " exceeds the runner's ", runner->max_step_tokens()));
  }
  return absl::WrapUnique(
      new GenerateEngine(options, std::move(runner), std::move(tokenizer), metrics));
}

GenerateEngine::GenerateEngine(const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
                               std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics)
    : RequestLoop(options, runner->slots(), StrictClientSlots(SchedulerOptions(options, *runner)),
                  metrics),
      runner_(std::move(runner)),
      info_(runner_->info()),
      tokenizer_(std::move(tokenizer)),
      scheduler_(SchedulerOptions(options_, *runner_)),
      prefixes_({.bytes = options_.model.prefix_cache_bytes,
                 .interval = options_.model.prefix_cache_interval_tokens},
                info_, scheduler_, *runner_, metrics_),
      slots_(*runner_, prefixes_, metrics_),
      resume_points_(slots_),
      pacer_(options_.scheduling.step_target),
      counts_(metrics) {
  StartThread("aft-engine");
}

absl::StatusOr<RequestHandle> GenerateEngine::Generate(GenerationRequest request,
                                                       std::shared_ptr<TokenSink> sink) {
  auto stream = MakeGeneration(std::move(request), std::move(sink));
  if (!stream.ok()) return RefuseInvalid(stream.status());
  return Accept(*std::move(stream));
}

absl::StatusOr<RequestHandle> GenerateEngine::GenerateTexts(
    std::vector<GenerationRequest> requests, const std::vector<std::shared_ptr<TokenSink>>& sinks) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto stream = MakeGeneration(std::move(requests[i]), sinks[i]);
    absl::string_view reason = stream.status().message();
    if (requests.size() > 1 && absl::ConsumePrefix(&reason, "prompt: ")) {
      return RefuseInvalid(
          absl::Status(stream.status().code(), absl::StrCat("texts[", i, "]: ", reason)));
    }
    if (!stream.ok()) return RefuseInvalid(stream.status());
    // It joins the stream before it if that reads the same prompt.
    if (i > 0 && (*stream)->prefix != nullptr &&
        static_cast<const TokenStream&>(*jobs.back()).prompt() == (*stream)->prompt()) {
      (*stream)->least_unread = 1;
    }
    jobs.push_back(*std::move(stream));
  }
  return AcceptTexts(std::move(jobs));
}

absl::StatusOr<std::unique_ptr<TokenStream>> GenerateEngine::MakeGeneration(
    GenerationRequest request, std::shared_ptr<TokenSink> sink) {
  AFT_RETURN_IF_ERROR(CheckGeneration(request, info_, options_.model.name));
  const auto prompt = static_cast<int64_t>(request.prompt.size() - request.resumed);
  uint32_t scored = 0;
  if (request.prompt_scores && request.resumed > 0) {
    request.prompt_scores = false;  // they came before the output
    const bool first = request.previous != nullptr && request.previous->pending != kNoToken;
    scored = static_cast<uint32_t>(prompt - (first ? 0 : 1));
  }
  if (request.prompt_scores) request.start = nullptr;  // all of the prompt is read again
  OutputBuilder output(*tokenizer_, std::move(request.stop), request.tokens_before() + prompt,
                       info_.max_seq_len, request.bad_words);
  AFT_ASSIGN_OR_RETURN(Resumption resumption, Replay(request, output));
  std::unique_ptr<PrefixRead> prefix = prefixes_.Make(request);
  auto stream = std::make_unique<TokenStream>(std::move(request), std::move(resumption),
                                              std::move(sink), std::move(output));
  stream->scored_tokens = scored;
  prefixes_.Attach(std::move(prefix), *stream);
  return stream;
}

absl::StatusOr<RequestHandle> GenerateEngine::GenerateGroup(
    const GenerationRequest& request, const std::vector<std::shared_ptr<TokenSink>>& sinks) {
  absl::Status status = CheckGeneration(request, info_, options_.model.name);
  const auto answers = static_cast<int64_t>(sinks.size());
  if (status.ok()) status = CheckGroup(*request.client, request.service_class, answers);
  if (!status.ok()) return RefuseInvalid(status);
  const int64_t before = request.tokens_before() + static_cast<int64_t>(request.prompt.size());
  auto group = MakeGroup(
      request, sinks,
      OutputBuilder(*tokenizer_, request.stop, before, info_.max_seq_len, request.bad_words));
  prefixes_.Attach(prefixes_.Make(request), static_cast<TokenStream&>(*group.front()));
  return Accept(std::move(group));
}

absl::Status GenerateEngine::CheckGroup(const Client& client, ServiceClass service_class,
                                        int64_t answers) const {
  const int32_t most = scheduler_.MaxGroup(client.max_slots, service_class);
  if (answers <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "n: must be at most ", most, ", the slots that one such request can have, got ", answers));
}

absl::StatusOr<RequestHandle> GenerateEngine::ScoreTexts(
    std::vector<ScoringRequest> requests, const std::vector<std::shared_ptr<TokenSink>>& sinks) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    absl::Status status = CheckScoring(requests[i], info_, options_.model.name);
    if (requests.size() > 1) {
      const std::string path = absl::StrCat("texts[", i, "]");
      status = WithPath(WithPath(status, "text", path), "text_to_score", path);
    }
    if (!status.ok()) return RefuseInvalid(status);
    std::unique_ptr<PrefixRead> prefix = prefixes_.Make(requests[i]);
    std::unique_ptr<TokenStream> stream = MakeScoring(std::move(requests[i]), sinks[i]);
    prefixes_.Attach(std::move(prefix), *stream);
    jobs.push_back(std::move(stream));
  }
  return AcceptTexts(std::move(jobs));
}

absl::StatusOr<RequestHandle> GenerateEngine::EncodeTexts(
    std::vector<EncodingRequest> requests, const std::vector<std::shared_ptr<VectorSink>>& sinks) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::Status status = CheckTokens(requests[i].text, info_.vocab_size, info_.max_seq_len);
    if (!status.ok()) return RefuseInvalid(status);
    jobs.push_back(
        std::make_unique<TokenStream>(std::move(requests[i]), info_.hidden_width, sinks[i]));
  }
  return AcceptTexts(std::move(jobs));
}

std::unique_ptr<TokenStream> GenerateEngine::MakeScoring(ScoringRequest request,
                                                         std::shared_ptr<TokenSink> sink) const {
  const auto tokens = static_cast<int64_t>(request.text.size());
  uint64_t bytes = 0;
  const auto first = static_cast<size_t>(tokens - request.scores(tokens));
  for (size_t i = first; i < first + static_cast<size_t>(request.scored); ++i) {
    bytes += TokenBytes(*tokenizer_, request.text[i]).size();
  }
  auto stream = std::make_unique<TokenStream>(std::move(request), tokens, std::move(sink));
  stream->scored_bytes = bytes;
  return stream;
}

void GenerateEngine::Add(Job& job, TimePoint now) {
  scheduler_.Add(static_cast<TokenStream&>(job), now);
}

void GenerateEngine::Remove(Job& job, Outcome& outcome) {
  auto& stream = static_cast<TokenStream&>(job);
  if (!stream.held.tokens.empty()) Give(*stream.sink, held_.Take(stream, {})).IgnoreError();
  scheduler_.Remove(stream);
  prefixes_.Remove(stream);
  if (stream.output) outcome.usage.generated_tokens = stream.output->tokens();
  outcome.computed_tokens = TokenCounts::Computed(stream);
  counts_.Ended(stream, outcome);
  outcome.usage.scored_tokens = stream.scored_tokens;
  outcome.scored_bytes = stream.scored_bytes;
  outcome.logprob = stream.logprob;
}

void GenerateEngine::Leave(Job& job, TimePoint now) {
  auto& stream = static_cast<TokenStream&>(job);
  if (!stream.survival.resumable) return;
  Outcome outcome;
  outcome.status = absl::UnavailableError(
      absl::StrCat(DrainStatus().message(), ": resume the stream elsewhere"));
  if (stream.survival.sink != nullptr && stream.prompt_left() == 0 && stream.flights() > 0) {
    return ContinuousScheduler::Pause(stream);
  }
  outcome.hand_over = resume_points_.TakeLast(stream);
  End(stream, std::move(outcome), now);
}

TimePoint GenerateEngine::Advance() {
  advance_began_ = Now();
  work_began_ = Work();
  Place();
  const Step* const step = scheduler_.Schedule(pacer_.PromptTokens(), step_costs_.cost());
  held_.Release(step, [this](TokenStream& stream, TokenDelta delta) {
    absl::Status status = Give(*stream.sink, std::move(delta));
    if (!status.ok()) Fail(stream, std::move(status), Now());
  });
  if (step != nullptr) Launch(*step);
  if (!flights_.empty() && !flights_.back().ticket.ok()) {
    // The runner refused it: its sequences must end before the next step is planned.
    while (!flights_.empty()) CollectOldest();
  } else if (!flights_.empty() &&
             (step == nullptr || scheduler_.in_flight() == runner_->max_steps_in_flight())) {
    CollectOldest();
  }
  const bool busy = !flights_.empty() || scheduler_.live() > 0 || scheduler_.parked() > 0 ||
                    scheduler_.waiting() > 0;
  return busy ? TimePoint::min() : TimePoint::max();
}

void GenerateEngine::Place() {
  const TimePoint now = Now();
  const Placement& placement = scheduler_.Place(now, [this](Sequence& sequence) {
    return prefixes_.MayStart(static_cast<TokenStream&>(sequence));
  });
  // A cancel and a deadline end a whole group at once. So the leader of these has failed.
  for (Sequence* sequence : placement.abandoned) {
    Fail(static_cast<TokenStream&>(*sequence), CallHasFailed(), now);
  }
  for (const auto& [sequence, slot] : placement.parked) {
    auto& stream = static_cast<TokenStream&>(*sequence);
    CheckState(stream, "engine.park_failed", slots_.Park(stream, slot));
  }
  std::vector<Job*> started;
  // Resumed after the end of their output, with nothing to be stored.
  std::vector<TokenStream*> over;
  for (Sequence* sequence : placement.started) {
    auto& stream = static_cast<TokenStream&>(*sequence);
    if (!stream.nothing_to_do() &&
        !CheckState(stream, "engine.restore_failed", slots_.Begin(stream))) {
      continue;
    }
    started.push_back(&stream);
    if (stream.nothing_to_do()) over.push_back(&stream);
  }
  for (Sequence* sequence : placement.following) {
    started.push_back(&static_cast<TokenStream&>(*sequence));
  }
  for (Sequence* sequence : placement.unparked) {
    auto& stream = static_cast<TokenStream&>(*sequence);
    if (stream.slot() < 0) continue;  // it was parked in the same placement, and that failed
    CheckState(stream, "engine.resume_failed", slots_.Unpark(stream));
  }
  if (!started.empty()) {
    BeginStep(started, now);
    PublishGauges();  // so that they are right even if the step never ends
  }
  // These may end streams that began just now, so they come after BeginStep.
  for (const auto& [leader, sequence] : placement.forked) {
    auto& stream = static_cast<TokenStream&>(*sequence);
    if (leader->slot() < 0) {
      Fail(stream, CallHasFailed(), now);  // the leader's state was lost
    } else {
      CheckState(stream, "engine.fork_failed",
                 slots_.Fork(static_cast<const TokenStream&>(*leader), stream));
    }
  }
  for (TokenStream* stream : over) End(*stream, *stream->ended, now);
}

bool GenerateEngine::CheckState(TokenStream& stream, const char* event,
                                const absl::Status& status) {
  if (status.ok()) return true;
  metrics_.failures(EngineFailure::kStateLost).Increment();
  log::Error(event, {{"model", options_.model.name},
                     {"id", stream.id},
                     {"error", status.ToString()},
                     {"trace_id", stream.trace_id}});
  if (absl::IsUnavailable(status)) FailStep({}, /*rows=*/0, status, Now());  // its device is lost
  Fail(stream,
       absl::IsResourceExhausted(status)
           ? OutOfMemory()
           : absl::InternalError(absl::StrCat("request ", stream.id, ": its state was lost")),
       Now());
  return false;
}

void GenerateEngine::Launch(const Step& step) {
  flights_.push_back({Now(), TokenCounts::OfPrompts(step), runner_->Submit(step.input)});
}

// Waits for the oldest step in flight.
void GenerateEngine::CollectOldest() {
  const Flight flight = std::move(flights_.front());
  flights_.erase(flights_.begin());
  const Step& step = scheduler_.Retire();
  const absl::Status status = Collect(flight, step);
  const TimePoint now = Now();
  // If the step had to wait for the one before, its time begins when that one was done.
  const Duration time = now - std::max(flight.submitted, collected_at_);
  ObserveStep(step.sequences.size(), step.tokens, time, now, status, runner_->device_stats());
  if (status.ok()) {
    pacer_.Observe(step.decodes(), step.prompt_tokens, time);
    if (step.prompt_tokens > 0) SetTokenSeconds(pacer_.prompt_token_seconds(), now);
  }
  collected_at_ = now;
  if (status.ok()) {
    Publish(step, flight.prompt_tokens, now);
    // The cost includes planning the step and handing out its tokens: streams wait for that too.
    if (step.decodes() > 0) {
      step_costs_.Observe(step.small, step.tokens, Work() - work_began_, Now() - advance_began_);
    }
    return;
  }
  counts_.Flush(flight.prompt_tokens);  // Computed has them too
  std::vector<Job*> failed;
  for (Sequence* sequence : step.sequences) {
    if (sequence != nullptr) failed.push_back(static_cast<TokenStream*>(sequence));
  }
  FailStep(failed, step.sequences.size(), status, now);
}

absl::Status GenerateEngine::Collect(const Flight& flight, const Step& step) {
  AFT_RETURN_IF_ERROR(flight.ticket.status());
  AFT_RETURN_IF_ERROR(runner_->Collect(*flight.ticket, output_));
  return CheckOutput(step, output_, info_.hidden_width);
}

void GenerateEngine::Publish(const Step& step, const TokenCounts::Prompts& prompt_tokens,
                             TimePoint now) {
  resume_points_.BeginStep();
  size_t sampled = 0;
  size_t scored = 0;
  size_t hidden = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepRow& row = step.input.rows[i];
    auto* const stream = static_cast<TokenStream*>(step.sequences[i]);
    if (row.output == RowOutput::kLast) {
      SampledToken& token = output_.sampled[sampled++];
      if (stream == nullptr) continue;  // it ended while the step was under way
      PublishToken(*stream, std::move(token), now);
    } else if (row.output == RowOutput::kScore) {
      std::vector<SampledToken>& scores = output_.scored[scored++];
      if (stream != nullptr) PublishScores(*stream, row, std::move(scores), now);
    } else if (row.output == RowOutput::kHidden) {
      std::vector<float>& vectors = output_.hidden[hidden++];
      if (stream != nullptr) PublishVectors(*stream, step, i, std::move(vectors), now);
    } else if (stream != nullptr && stream->purpose() == Sequence::Purpose::kRead &&
               row.end() == stream->prompt_end()) {
      if (stream->end != nullptr) stream->end->last_is_pending = stream->turn().leaves_last;
      Deliver(*stream, {}, /*ended=*/true, *stream->ended, now);
    } else if (stream != nullptr) {
      prefixes_.HasRead(*stream);
    }
  }
  counts_.Flush(prompt_tokens);
}

void GenerateEngine::PublishToken(TokenStream& stream, SampledToken token, TimePoint now) {
  if (token.id == kNoToken) return FailNoToken(stream, now);
  counts_.Sampled(stream, now);
  scheduler_.Sampled(stream, token.id);

  TokenDelta delta;
  Outcome outcome;
  const TokenId id = token.id;
  if (stream.has_penalties()) stream.sampled.push_back(id);
  const bool ended = stream.output->Append(std::move(token), delta, outcome);
  if (stream.output->bans().any()) stream.Ban(stream.output->bans().Next());
  prefixes_.HasSampled(stream, delta.tokens);
  if (!ended && stream.survival.sink != nullptr) {
    stream.unsaved.push_back(id);
    resume_points_.MaybeLeave(stream);
  }
  if (stream.end != nullptr) {
    for (const SampledToken& output : delta.tokens) stream.end->outputs.push_back(output.id);
    // A stop token comes after all of the output, so the model has consumed all of the output.
    stream.end->ended_by_token = delta.tokens.empty();
    stream.end->last_is_pending = !stream.end->ended_by_token;
  }
  Deliver(stream, std::move(delta), ended, std::move(outcome), now);
}

// If the request itself rules out every token, the model has not failed.
void GenerateEngine::FailNoToken(TokenStream& stream, TimePoint now) {
  const OutputBuilder& output = *stream.output;
  const bool early = output.tokens() < output.min_tokens();
  if (stream.banned().empty() ||
      !LeaveNoToken(stream.sampling.rules.get(), early, stream.banned(), info_.vocab_size)) {
    return FailNotFinite(stream, now);
  }
  Fail(stream,
       absl::InvalidArgumentError(
           absl::StrCat("sampling.bad_words: leave no token to sample as number ", output.tokens(),
                        " of the output")),
       now);
}

void GenerateEngine::PublishScores(TokenStream& stream, const StepRow& row,
                                   std::vector<SampledToken> scores, TimePoint now) {
  for (const SampledToken& score : scores) {
    if (score.id == kNoToken) return FailNotFinite(stream, now);
    stream.logprob += score.logprob;
    stream.scored_bytes += TokenBytes(*tokenizer_, score.id).size();
  }
  stream.scored_tokens += static_cast<uint32_t>(scores.size());
  metrics_.scored_tokens[stream.method].Increment(static_cast<double>(scores.size()));
  // The first token of a generation is its first sampled one, if there is to be one.
  const bool generates = stream.purpose() == Sequence::Purpose::kGenerate;
  if (!generates && !stream.first_output_at && !scores.empty()) stream.first_output_at = now;
  prefixes_.HasSampled(stream, {});

  TokenDelta delta;
  // Where the previous state has a pending token, the text's first token is scored too.
  delta.first_index = static_cast<uint32_t>(row.first_position + 1 - stream.text_begin());
  delta.of_prompt = stream.output.has_value();
  delta.tokens.assign(std::make_move_iterator(scores.begin()),
                      std::make_move_iterator(scores.end()));
  Outcome outcome;
  outcome.reason = FinishReason::kDone;
  if (stream.ended != nullptr) outcome = *stream.ended;
  if (stream.end != nullptr) stream.end->last_is_pending = stream.turn().leaves_last;
  Deliver(stream, std::move(delta), row.end() == stream.prompt_end(), std::move(outcome), now);
}

void GenerateEngine::PublishVectors(TokenStream& stream, const Step& step, size_t row,
                                    std::vector<float> vectors, TimePoint now) {
  stream.encoding->vectors.Add(std::move(vectors));
  if (step.input.rows[row].end() != stream.prompt_end()) return;
  std::vector<float> result = stream.encoding->vectors.Take();
  if (!AllFinite(result)) return FailNotFinite(stream, now);
  metrics_.encoded_tokens[stream.method].Increment(static_cast<double>(stream.tokens));
  EndEncoded(stream, *stream.encoding->sink, std::move(result), step.sequences.size(), now);
}

void GenerateEngine::Deliver(TokenStream& stream, TokenDelta delta, bool ended, Outcome outcome,
                             TimePoint now) {
  const bool news = !delta.tokens.empty() || !delta.text.empty();
  // The first token of a stream is never held for the rest of its turn.
  if (news && !ended && stream.is_in_turn() && stream.further_tokens > 0) {
    held_.Hold(stream, std::move(delta));
  } else {
    absl::Status status;
    // Text without tokens comes again when the stream is resumed, so it stays apart from tokens.
    if (delta.tokens.empty() && !stream.held.tokens.empty()) {
      status = Give(*stream.sink, held_.Take(stream, {}));
    }
    if (news && status.ok()) status = Give(*stream.sink, held_.Take(stream, std::move(delta)));
    if (!status.ok()) return Fail(stream, std::move(status), now);
  }
  if (!ended) return;
  if (stream.end != nullptr) {
    absl::StatusOr<std::shared_ptr<TurnEnd>> turn = slots_.TakeTurn(stream);
    if (!CheckState(stream, "engine.store_failed", turn.status())) return;
    outcome.turn = *std::move(turn);
  } else {
    prefixes_.HasEnded(stream);
  }
  End(stream, std::move(outcome), now);
}

void GenerateEngine::PublishGauges() {
  prefixes_.PublishGauges();
  RequestGauge::Counts running{};
  for (const Sequence* sequence : scheduler_.live_sequences()) {
    ++running[static_cast<size_t>(static_cast<const TokenStream*>(sequence)->Job::service_class)];
  }
  metrics_.requests_running.Set(running);
  metrics_.requests_parked.Set(scheduler_.parked());
  metrics_.slots_used.Set(scheduler_.slots().used());
}

}  // namespace aft::server
