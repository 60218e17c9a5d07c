#include "server/call/call.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/catching.h"
#include "base/status_macros.h"
#include "server/call/call_report.h"
#include "server/config/checks.h"
#include "server/engine/resumption.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

// A last message of at least this size is made on the decode pool, not on an engine's thread.
constexpr size_t kLargeMessageBytes = size_t{32} << 10;
// OpenAI allows 64 characters, each of which has at most 4 bytes.
constexpr size_t kMaxUserBytes = 256;

}  // namespace

// The sink of one sequence of the call.
template <typename Part>
class Call::SequenceSink final : public Sink<Part> {
 public:
  SequenceSink(std::shared_ptr<Call> call, uint32_t sequence)
      : call_(std::move(call)), sequence_(sequence) {}

  // Returns one sink for each sequence of the call.
  static std::vector<std::shared_ptr<Sink<Part>>> Of(const std::shared_ptr<Call>& call) {
    std::vector<std::shared_ptr<Sink<Part>>> sinks;
    for (uint32_t i = 0; i < call->sequences_; ++i) {
      sinks.push_back(std::make_shared<SequenceSink>(call, i));
    }
    return sinks;
  }

  void OnStarted() override { call_->Begin(); }
  absl::Status OnPart(Part part) override { return call_->Offer(std::move(part), sequence_); }
  void OnFinished(const Outcome& outcome) override { call_->End(outcome, sequence_); }

 private:
  const std::shared_ptr<Call> call_;
  const uint32_t sequence_;
};

Call::Call(InferenceEnvironment& environment, std::unique_ptr<Exchange> exchange,
           std::shared_ptr<Carrier> carrier)
    : environment_(environment),
      exchange_(std::move(exchange)),
      carrier_(std::move(carrier)),
      arrival_(std::chrono::steady_clock::now()),
      states_(environment.states, environment.decoders, environment.metrics.states),
      outbox_(environment, *exchange_) {}

// ---- The way in ---------------------------------------------------------------------------------

void Call::Start(Caller caller, absl::Status admitted, std::unique_ptr<RequestBytes> message) {
  caller_ = std::move(caller);
  deadline_ = std::min(caller_.deadline, arrival_ + environment_.limits.max_request);
  message_ = std::move(message);
  exchange_->Peek(*message_);
  {
    MutexLock lock(mutex_);
    if (client_ == nullptr) client_ = caller_.client;
  }
  if (admitted.ok()) admitted = Admit();
  if (!admitted.ok()) return Refuse(admitted);
  environment_.decoders.AddAnswer(*caller_.client, message_->size(), [call = shared_from_this()] {
    call->Attempt([&] { return call->Submit(); });
    return call->answered_bytes_;
  });
}

absl::Status Call::Admit() {
  const absl::Status fits = environment_.CheckMessage(message_->size(), exchange_->takes_tensors());
  too_large_ = !fits.ok();
  AFT_RETURN_IF_ERROR(fits);
  const std::optional<std::string> model =
      message_->PeekStrings(Exchange::kModelField, kMaxModelNameBytes).back();
  if (model.has_value() && exchange_->needs_engine()) AFT_RETURN_IF_ERROR(Reserve(*model));
  outbox_.Open(MemoryLedger::Charge(environment_.ledger, *caller_.client));
  const size_t bytes = kCallBytes + exchange_->RequestCost(*message_);
  if (outbox_.Hold(bytes)) return absl::OkStatus();
  if (model.has_value()) SetModelName(*model);
  return environment_.RefuseForMemory(outbox_.Need());
}

// Runs before the message is parsed. It can therefore reserve only for a `model` that stands at the
// beginning of the message and that has a single version. FindModel finds the final model.
absl::Status Call::Reserve(const std::string& model) {
  absl::StatusOr<ModelHold> served = environment_.registry.AcquireOnly(*caller_.client, model);
  absl::Status status = served.status();
  if (served.ok()) {
    model_ = *served;
    absl::StatusOr<std::shared_ptr<Reservation>> place = model_->engine().Reserve(*caller_.client);
    status = place.status();
    if (place.ok()) reservation_ = *std::move(place);
  } else if (!absl::IsUnavailable(status) && !absl::IsPermissionDenied(status)) {
    return absl::OkStatus();
  }
  if (!status.ok()) SetModelName(model);
  return status;
}

void Call::SetModelName(const std::string& model) {
  model_name_ = model_ != nullptr ? model_->config.name : model;
  metrics_ = environment_.registry.FindMetrics(*caller_.client, model_name_);
}

void Call::Attempt(absl::FunctionRef<absl::Status()> part) {
  absl::Status status = outbox_.CheckClient();
  if (status.ok()) status = Catching(part);
  // After a success, the engine has the request, or the next part checks the client again.
  if (!status.ok()) Refuse(status);
}

void Call::Refuse(const absl::Status& status) {
  reservation_.reset();
  message_.reset();
  states_.DropPlaces();
  refused_ = true;
  Outcome refusal;
  refusal.status = status;
  refusal.timings.total = std::chrono::steady_clock::now() - arrival_;
  outbox_.EndCall(std::move(refusal));
  carrier_->Wake(*this);
}

absl::Status Call::Submit() {
  AFT_RETURN_IF_ERROR(message_->ParseInto(exchange_->request()));
  message_.reset();
  AFT_RETURN_IF_ERROR(exchange_->CheckRequest());
  AFT_RETURN_IF_ERROR(FindUser());
  AFT_RETURN_IF_ERROR(FindModel());
  const Continuation continuation = exchange_->continuation();
  if (continuation.resumes.has_value()) PreferVersion(*continuation.resumes);
  const absl::Status decoded = Decode();
  // The text before may be of another version, and the request may be good for that one.
  const bool is_final = continuation.previous == nullptr || names_version_;
  if (!decoded.ok() && is_final) return Invalid(decoded);
  if (!exchange_->needs_engine()) return Answer();
  if (continuation.previous == nullptr) return PrepareTurn();
  states_.FindPrevious(*caller_.client, *continuation.previous,
                       [call = shared_from_this(), decoded](const Found& found) {
                         call->Attempt([&] {
                           AFT_RETURN_IF_ERROR(call->SetPrevious(found, decoded));
                           return call->PrepareTurn();
                         });
                       });
  return absl::OkStatus();
}

absl::Status Call::FindUser() {
  absl::StatusOr<std::string> user = exchange_->TakeUser();
  if (!caller_.client->shares_by_user) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(user_, std::move(user));
  return CheckLength("user", user_.size(), kMaxUserBytes);
}

absl::Status Call::FindModel() {
  const auto [field, name, version_field, version] = exchange_->model_name();
  AFT_RETURN_IF_ERROR(CheckLength(field, name.size(), kMaxModelNameBytes));
  AFT_RETURN_IF_ERROR(CheckLength(version_field, version.size(), kMaxModelNameBytes));
  names_version_ = !version.empty();
  const auto model = environment_.registry.Acquire(*caller_.client, name, version);
  const ModelHold found = model.ok() ? *model : nullptr;
  if (found != model_) reservation_.reset();  // the reservation was for another model
  model_ = found;
  SetModelName(name);  // after Acquire, because a model that is served has metrics
  AFT_RETURN_IF_ERROR(WithPath(model.status(), "model", field));
  MutexLock lock(mutex_);
  found_ = true;
  return CheckModel();
}

absl::Status Call::CheckModel() const {
  return found_ ? ModelTable::CheckMayUse(*client_, model_name_) : absl::OkStatus();
}

bool Call::PreferVersion(uint64_t fingerprint) {
  if (names_version_) return false;
  ModelHold model = environment_.registry.Matching(model_, fingerprint);
  if (model == model_) return false;
  reservation_.reset();
  model_ = std::move(model);
  return true;
}

absl::Status Call::Decode() {
  AFT_ASSIGN_OR_RETURN(decoded_, exchange_->Decode(*model_, environment_.limits));
  sequences_ = decoded_.sequences;
  if (decoded_.timeout.count() > 0) deadline_ = std::min(deadline_, arrival_ + decoded_.timeout);
  return absl::OkStatus();
}

absl::Status Call::CheckSequences() const {
  if (sequences_ == 1) return absl::OkStatus();
  if (const auto* const generation = std::get_if<GenerationRequest>(&decoded_.work)) {
    return Invalid(
        model_->generate->CheckGroup(*caller_.client, generation->service_class, sequences_));
  }
  const std::string texts = exchange_->texts_field();
  if (texts.empty()) return absl::OkStatus();
  return Invalid(model_->engine().CheckTexts(*caller_.client, sequences_, texts));
}

absl::Status Call::Invalid(absl::Status status) const {
  if (!status.ok()) metrics_->rejected(Rejection::kInvalid).Increment();
  return status;
}

absl::Status Call::StateError(const absl::Status& status, const absl::Status& decoded) const {
  if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) return status;
  return Invalid(decoded.ok() ? status : decoded);
}

absl::Status Call::SetPrevious(const Found& found, absl::Status decoded) {
  if (!found.ok()) return StateError(found.status(), decoded);
  const absl::StatusOr<bool> again = exchange_->SetPrevious(**found);
  if (!again.ok()) return Invalid(again.status());
  if (PreferVersion((*found)->model) || *again) decoded = Decode();
  ForEachTurn(decoded_.work, [&](TurnRequest& request) {
    request.previous = *found;
    if (decoded.ok()) decoded = CheckPrevious(request, model_->info, model_->config.name);
  });
  return Invalid(std::move(decoded));
}

absl::Status Call::PrepareTurn() {
  AFT_RETURN_IF_ERROR(CheckSequences());
  const Continuation continuation = exchange_->continuation();
  if (continuation.store != nullptr) {
    ForEachTurn(decoded_.work, [](TurnRequest& request) { request.store = true; });
    const absl::Status kept =
        states_.KeepPlaces(*caller_.client, *continuation.store, model_->info, decoded_.work,
                           sequences_, continuation.note_bytes);
    stores_if_room_ = continuation.store_if_room;
    if (kept.ok()) {
      if (sequences_ == 1) exchange_->SetStateId(states_.state_id(0));
    } else if (stores_if_room_) {
      ForEachTurn(decoded_.work, [](TurnRequest& request) { request.store = false; });
      states_.DropPlaces();
    } else {
      return StateError(kept);
    }
  }
  if (continuation.resume == nullptr) return PrepareStream();
  states_.FindStart(*caller_.client, *continuation.resume, model_->info,
                    std::get<GenerationRequest>(decoded_.work), [call = shared_from_this()] {
                      call->Attempt([&] { return call->PrepareStream(); });
                    });
  return absl::OkStatus();
}

absl::Status Call::PrepareStream() {
  auto* const generation = std::get_if<GenerationRequest>(&decoded_.work);
  if (exchange_->continuation().resumes.has_value()) {
    resumed_ = &metrics_->streams_resumed(
        exchange_->SetExact(decoded_.work, model_->info),
        /*from_state=*/generation != nullptr && generation->start != nullptr);
  }
  // Only a stream with one answer can survive: each of several answers would need its own state.
  if (exchange_->resumable() && sequences_ == 1) {
    states_.Survive(caller_.client, *model_, caller_.ids, *generation,
                    [this](size_t bytes) { return outbox_.HoldMore(bytes); });
    if (!states_.resume_id().empty()) exchange_->SetResumeId(states_.resume_id());
  }
  return Enter();
}

absl::Status Call::Enter() {
  AFT_RETURN_IF_ERROR(Charge());
  exchange_->Prepare();
  const absl::StatusOr<RequestHandle> handle = Ask();
  AFT_RETURN_IF_ERROR(handle.status());
  if (outbox_.Accepted(*handle)) CancelAll(*handle);
  return absl::OkStatus();
}

absl::Status Call::Charge() {
  outbox_.ExpectSequences(sequences_);
  const size_t users = 2 * user_.size() * sequences_;  // in the job and the sequence of each
  const size_t engine = EngineBytes(decoded_.work, sequences_, model_->info);
  if (outbox_.Hold(kCallBytes + decoded_.bytes + users + engine + states_.brought_bytes() +
                   states_.kept_bytes())) {
    return absl::OkStatus();
  }
  const std::pair<size_t, bool> need = outbox_.Need();
  const std::string texts = exchange_->texts_field();
  const bool several = sequences_ > 1 && !texts.empty();
  absl::Status refused = environment_.RefuseForMemory(
      need, several ? texts + ": they and their answers" : "the request and its answer");
  return need.second ? refused : Invalid(std::move(refused));
}

absl::StatusOr<RequestHandle> Call::Ask() {
  RequestHeader header = {.method = exchange_->method(),
                          .id = caller_.ids.request,
                          .trace_id = caller_.ids.trace.trace_id,
                          .arrival = arrival_,
                          .deadline = deadline_,
                          .client = caller_.client,
                          .user = user_,
                          .reservation = std::move(reservation_)};
  return AskEngine(
      std::exchange(decoded_.work, {}), *model_, std::move(header), caller_.cache_salt,
      [this] { return SequenceSink<TokenDelta>::Of(shared_from_this()); },
      [this] { return SequenceSink<std::vector<float>>::Of(shared_from_this()); });
}

absl::Status Call::Answer() {
  answered_bytes_ = exchange_->held_bytes();
  if (!outbox_.Hold(kCallBytes)) return environment_.RefuseForMemory(outbox_.Need(), "the answer");
  Outcome outcome;
  outcome.reason = FinishReason::kDone;
  outcome.timings.total = std::chrono::steady_clock::now() - arrival_;
  outbox_.EndCall(std::move(outcome));
  carrier_->Wake(*this);
  return absl::OkStatus();
}

// ---- The engine's side --------------------------------------------------------------------------

void Call::Begin() {
  CountResumed();
  states_.KeepStart();
  outbox_.Begin();
  if (exchange_->streams()) carrier_->Wake(*this);  // the end tells more if a message has left
}

template <typename Part>
absl::Status Call::Offer(Part part, uint32_t sequence) {
  AFT_RETURN_IF_ERROR(outbox_.Offer(std::move(part), sequence));
  if (exchange_->streams()) carrier_->WakeLater(*this);
  return absl::OkStatus();
}

void Call::End(const Outcome& outcome, uint32_t sequence) {
  if (outcome.hand_over != nullptr) return HandOver(outcome, sequence);
  if (outcome.turn == nullptr) {
    states_.DropPlace(sequence);
    return EndNow(outcome, sequence, std::nullopt);
  }
  const TurnEnd& turn = *outcome.turn;
  const auto state_bytes = static_cast<size_t>(turn.state->bytes());
  const auto ended = std::make_shared<EndedSequence>(outcome, sequence);
  environment_.decoders.Add(*caller_.client, turn.text.size() + turn.outputs.size() + state_bytes,
                            [call = shared_from_this(), ended] { call->Store(ended); });
}

void Call::Store(const std::shared_ptr<EndedSequence>& ended) {
  const absl::Status done = Catching([&] {
    std::shared_ptr<TurnEnd> turn = std::move(ended->outcome.turn);
    std::string note = exchange_->Note(ended->outcome);
    // If the call has ended early, no client would learn of the state.
    if (note.size() > states_.note_bytes() || outbox_.ended_early()) {
      states_.DropPlace(ended->sequence);
      Stored(*ended, std::nullopt);
    } else {
      states_.Put(*caller_.client, model_->config.name, ended->sequence, std::move(turn),
                  std::move(note),
                  [call = shared_from_this(), ended](absl::StatusOr<v1::State> state) {
                    call->Stored(*ended, std::move(state));
                  });
    }
    return absl::OkStatus();
  });
  if (done.ok()) return;
  states_.DropPlace(ended->sequence);
  Stored(*ended, done);
}

void Call::Stored(EndedSequence& ended, absl::StatusOr<std::optional<v1::State>> state) {
  if (ended.told.exchange(true)) return;
  if (state.ok()) return EndNow(ended.outcome, ended.sequence, *std::move(state));
  log::Error("request.store_failed", {{"id", caller_.ids.request},
                                      {"error", state.status().ToString()},
                                      {"trace_id", caller_.ids.trace.trace_id}});
  if (!stores_if_room_) ended.outcome.status = state.status();
  EndNow(ended.outcome, ended.sequence, std::nullopt);
}

void Call::HandOver(const Outcome& outcome, uint32_t sequence) {
  states_.DropPlace(sequence);
  states_.HandOver(std::move(*outcome.hand_over),
                   [call = shared_from_this(), outcome, sequence](std::string sealed) {
                     call->outbox_.SetHandOver(std::move(sealed));
                     call->EndNow(outcome, sequence, std::nullopt);
                   });
}

void Call::EndNow(const Outcome& outcome, uint32_t sequence, std::optional<v1::State> stored) {
  const auto [last, bytes, others] = outbox_.EndSequence(outcome, sequence, std::move(stored));
  if (others.has_value()) CancelAll(*others);
  if (!last && !exchange_->streams()) return;
  if (bytes < kLargeMessageBytes) return carrier_->WakeLater(*this);
  environment_.decoders.Add(*caller_.client, bytes,
                            [call = shared_from_this()] { call->carrier_->WakeLast(*call); });
}

void Call::CancelAll(RequestHandle first) {
  model_->engine().Cancel(first, sequences_, outbox_.WhyCancelled(arrival_, deadline_));
}

void Call::Cancel(const absl::Status& why) {
  const std::optional<RequestHandle> handle = outbox_.Cancel(why);
  // Cancelling frees the slot now. A blocked connection can keep the transport busy with the call
  // for minutes.
  if (handle.has_value()) CancelAll(*handle);
}

void Call::OnClient(std::shared_ptr<const Client> client) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    client_ = std::move(client);
    status = CheckModel();
  }
  if (!status.ok()) Cancel(status);
}

// ---- The way out --------------------------------------------------------------------------------

Call::Next Call::Take() {
  Next next = Next::kNothing;
  const auto take = [&] {
    next = outbox_.Take();
    if (next == Next::kMessage) taken_at_ = std::chrono::steady_clock::now();
    return next == Next::kEnd ? Conclude() : absl::OkStatus();
  };
  for (absl::Status taken = Catching(take); !taken.ok(); taken = Catching(take)) Cancel(taken);
  // A report that fails for lack of memory is not repeated, because it would count the call again.
  if (next == Next::kEnd && !reported_) Catching([this] { return Report(); }).IgnoreError();
  return next;
}

void Call::Written() {
  if (taken_at_.has_value()) writing_ += std::chrono::steady_clock::now() - *taken_at_;
  taken_at_.reset();
}

absl::Status Call::Conclude() {
  const Outcome& outcome = outbox_.outcome();
  ending_.status = outbox_.FinalStatus(arrival_, deadline_);
  if (!ending_.status.ok()) ending_.status = exchange_->InOwnNames(ending_.status);
  ending_.begun = outbox_.begun();
  ending_.path = outbox_.failed_path();
  ending_.usage = outcome.usage;
  ending_.timings = outcome.timings;
  if (ending_.status.ok()) {
    const bool message = exchange_->Finish(outcome, outbox_.stored());
    if (message) AFT_RETURN_IF_ERROR(carrier_->Serialize(exchange_->outgoing()));
    ending_.message = message;
  } else if (!outbox_.engine_began() && absl::IsResourceExhausted(ending_.status)) {
    const EngineLoad load = model_ != nullptr ? model_->engine().load() : EngineLoad();
    ending_.retry_after =
        too_large_ ? std::chrono::milliseconds(-1) : environment_.retry_hint.After(load);
  }
  return absl::OkStatus();
}

absl::Status Call::Report() {
  reported_ = true;
  const Method method = exchange_->method();
  const absl::Status& status = ending_.status;
  const Duration total = std::chrono::steady_clock::now() - arrival_;
  if (!refused_) metrics_->calls.Observe(method, total);
  (metrics_ != nullptr ? metrics_->calls : environment_.metrics.calls).Count(method, status.code());
  if (model_ != nullptr && status.ok() && exchange_->needs_engine()) {
    environment_.retry_hint.Record(ending_.timings.total - ending_.timings.queue);
  }
  if (caller_.client != nullptr) {
    environment_.client_metrics.Count(caller_.client->name, status.code(),
                                      outbox_.computed_tokens());
  }
  states_.Forget(status.code(), ending_.begun);
  if (model_ != nullptr) exchange_->Record(*model_, status, ending_.timings);
  if (refused_ && !absl::IsInternal(status) && !environment_.LogsRefusal()) return absl::OkStatus();
  LogRequest({.caller = caller_,
              .method = method,
              .model = model_name_,
              .sequences = sequences_,
              .ending = ending_,
              .reason = outbox_.outcome().reason,
              .total = total,
              .writing = writing_});
  return absl::OkStatus();
}

void Call::Close() {
  for (const std::string& id : outbox_.Close(/*told_all=*/ending_.message)) {
    environment_.states.Discard(*caller_.client, id);
  }
}

}  // namespace aft::server
