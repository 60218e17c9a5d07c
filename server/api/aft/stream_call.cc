#include "server/api/aft/stream_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/api/aft/text_codec.h"
#include "server/config/checks.h"
#include "server/engine/resumption.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

constexpr int kModelField = 1;  // of every request

// What a sequence beside the first costs: its stream in the engine with its stop strings, its part
// of what is pending, about.
constexpr size_t kSequenceBytes = size_t{8} << 10;

// What a byte of a message can become: itself, a parsed token of four, a token of a prompt of four.
constexpr size_t kBytesPerRequestByte = 9;

}  // namespace

CallReactor* StreamCall::Start(const std::shared_ptr<StreamCall>& call,
                               const grpc::ByteBuffer& message) {
  call->environment_.active.Add(call);
  absl::Status status = call->Admit(message);
  if (status.ok()) {
    call->environment_.decoders.AddAnswer(*call->client_, message.Length(), [call, &message] {
      call->Attempt([&] { return call->Submit(message); });
      return call->answer_bytes_;
    });
  } else {
    call->Refuse(std::move(status));
  }
  return call.get();
}

StreamCall::StreamCall(Method method, InferenceEnvironment& environment,
                       grpc::CallbackServerContext& context)
    : ActiveCall(context),
      method_(method),
      unary_(IsUnary(method)),
      environment_(environment),
      arrival_(std::chrono::steady_clock::now()),
      deadline_(std::min(DeadlineOf(context), arrival_ + environment.limits.max_request)),
      undelivered_(environment.metrics.undelivered_bytes) {}

absl::Status StreamCall::Admit(const grpc::ByteBuffer& message) {
  AFT_RETURN_IF_ERROR(TakeIds(context(), ids_));
  AFT_ASSIGN_OR_RETURN(client_, Identify(environment_.identity));
  const std::optional<std::string> model = PeekString(message, kModelField, kMaxModelNameBytes);
  if (model.has_value() && !NeedsNoEngine(method_)) AFT_RETURN_IF_ERROR(Reserve(*model));
  MutexLock lock(mutex_);
  charge_ = MemoryLedger::Charge(environment_.ledger, *client_);
  request_bytes_ = kCallBytes + kBytesPerRequestByte * message.Length();
  if (Recharge()) return absl::OkStatus();
  return environment_.RefuseForMemory();
}

// Before the message is parsed, so only by a `model` that stands at its beginning, and where there
// is no choice of versions: Submit knows the last one.
absl::Status StreamCall::Reserve(const std::string& model) {
  absl::StatusOr<ModelHold> served = environment_.registry.AcquireOnly(*client_, model);
  absl::Status status = served.status();
  if (served.ok()) {
    model_ = *served;
    absl::StatusOr<std::shared_ptr<Reservation>> place = model_->engine().Reserve(*client_);
    status = place.status();
    if (place.ok()) reservation_ = *std::move(place);
  } else if (!absl::IsUnavailable(status) && !absl::IsPermissionDenied(status)) {
    return absl::OkStatus();
  }
  if (!status.ok()) {
    metrics_ = environment_.registry.FindMetrics(model);
    model_name_ = model_ != nullptr ? model_->config.name : model;
  }
  return status;
}

void StreamCall::Attempt(absl::FunctionRef<absl::Status()> part) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (cancelled_) status = absl::CancelledError("the client cancelled the request");
  }
  if (status.ok()) status = Catching(part);
  // The engine has it, and its first message leaves with Begin; or the next part will see.
  if (status.ok()) return;
  {
    MutexLock lock(mutex_);
    writing_ = true;  // nobody else will ever want it
  }
  Refuse(std::move(status));
}

absl::Status StreamCall::Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  AFT_RETURN_IF_ERROR(ParseMessage(bytes, message));
  // gRPC would keep it as long as the call; it is not constant, only passed so.
  const_cast<grpc::ByteBuffer&>(bytes).Clear();
  return absl::OkStatus();
}

void StreamCall::Refuse(absl::Status status) {
  reservation_.reset();
  places_.clear();
  refused_ = true;
  Outcome refusal;
  refusal.status = std::move(status);
  refusal.timings.total = std::chrono::steady_clock::now() - arrival_;
  Conclude(refusal);
}

bool StreamCall::Recharge() {
  return HoldUnsent(request_bytes_, held_bytes() + sending_bytes_, charge_, undelivered_);
}

absl::Status StreamCall::FindModel(const std::string& name, const std::string& version) {
  AFT_RETURN_IF_ERROR(CheckLength("model", name.size(), kMaxModelNameBytes));
  AFT_RETURN_IF_ERROR(CheckLength("model_version", version.size(), kMaxModelNameBytes));
  names_version_ = !version.empty();
  absl::StatusOr<ModelHold> model = environment_.registry.Acquire(*client_, name, version);
  model_name_ = model.ok() ? (*model)->config.name : name;
  // After Acquire: a model that is served has metrics.
  metrics_ = environment_.registry.FindMetrics(model_name_);
  if (!model.ok()) return model.status();
  AFT_RETURN_IF_ERROR(Require([name = model_name_](const Client& client) {
    return ModelRegistry::CheckMayUse(client, name);
  }));
  if (*model != model_) reservation_.reset();  // it was of another one
  model_ = *std::move(model);
  return absl::OkStatus();
}

bool StreamCall::PreferVersion(uint64_t fingerprint) {
  if (names_version_) return false;
  ModelHold model = environment_.registry.Matching(model_, fingerprint);
  if (model == model_) return false;
  reservation_.reset();
  model_ = std::move(model);
  return true;
}

absl::Status StreamCall::WrongTask() {
  const char* const task =
      model_->generate != nullptr    ? "a language model: it serves Generate and Score"
      : model_->tokenizer != nullptr ? "an encoder: it serves Encode"
      : model_->info.vocab_size == 0 ? "a bare mixer: it serves ModelInfer"
                                     : "an encoder of images: it serves ModelInfer";
  return Invalid(absl::FailedPreconditionError(absl::StrCat(
      "model \"", model_->config.name, "\" is ", task, ", not ", MethodName(method_))));
}

absl::Status StreamCall::Invalid(absl::Status status) {
  metrics_->rejected(Rejection::kInvalid).Increment();
  return status;
}

absl::Status StreamCall::CheckPrevious(const TurnRequest& request) {
  absl::Status status = server::CheckPrevious(request, model_->info, model_->config.name);
  return status.ok() ? status : Invalid(std::move(status));
}

void StreamCall::FindPrevious(const v1::Previous* previous, TurnRequest& request,
                              std::function<absl::Status()> rest) {
  if (previous == nullptr) return Attempt(rest);
  const bool brought = !previous->state().empty();
  using Found = absl::StatusOr<std::shared_ptr<const SequenceState>>;
  environment_.states.Find(
      *client_, *previous,
      [call = shared_from_this(), brought, &request, rest = std::move(rest)](const Found& found) {
        call->Attempt([&] {
          if (!found.ok()) return call->StateError(found.status());
          request.previous = *found;
          if (brought) call->previous_bytes_ = static_cast<size_t>(StateBytes(**found));
          return rest();
        });
      });
}

absl::Status StreamCall::StateError(absl::Status status) {
  const bool ours = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  return ours ? status : Invalid(std::move(status));
}

absl::Status StreamCall::ExpectSequences(uint32_t sequences, absl::Status possible) {
  if (!possible.ok()) return Invalid(std::move(possible));
  sequences_ = sequences;
  return absl::OkStatus();
}

absl::Status StreamCall::KeepPlaces(const v1::Store* store, const std::vector<size_t>& texts,
                                    int64_t most_outputs, TurnRequest& request) {
  if (store == nullptr) return absl::OkStatus();
  request.store = true;
  const int64_t before = request.tokens_before();
  const int64_t longest = model_->info.max_seq_len;
  for (const size_t text : texts) {
    int64_t added = static_cast<int64_t>(text) + most_outputs;
    if (longest > 0) added = std::min(added, std::max<int64_t>(longest - before, 0));
    const int64_t bytes = MaxStateBytes(model_->info, before + added, added);
    auto place = environment_.states.Reserve(*client_, *store, bytes);
    if (!place.ok()) return StateError(place.status());
    places_.push_back(*std::move(place));
  }
  return absl::OkStatus();
}

absl::Status StreamCall::Fill(RequestHeader& header, size_t tokens) {
  header.method = method_;
  header.id = ids_.request;
  header.trace_id = ids_.trace.trace_id;
  header.arrival = arrival_;
  header.deadline = deadline_;
  header.client = client_;
  header.reservation = std::move(reservation_);
  MutexLock lock(mutex_);
  writing_ = false;  // the engine's from here on
  request_bytes_ = kCallBytes + tokens * sizeof(TokenId) + previous_bytes_ + kept_bytes_ +
                   (sequences_ - 1) * kSequenceBytes;
  const auto bytes = static_cast<int64_t>(request_bytes_ + held_bytes());
  if (charge_.Resize(bytes)) return absl::OkStatus();
  if (HasTexts() && !charge_.MayEverHold(bytes)) {
    return Invalid(absl::InvalidArgumentError(
        absl::StrCat("texts: they and their answers would take ", bytes,
                     " bytes, more than max_client_memory_bytes or max_memory_bytes")));
  }
  return environment_.RefuseForMemory();
}

absl::Status StreamCall::Answer() {
  Outcome outcome;
  outcome.reason = FinishReason::kDone;
  outcome.timings.total = std::chrono::steady_clock::now() - arrival_;
  {
    MutexLock lock(mutex_);
    request_bytes_ = kCallBytes;
    answer_bytes_ = held_bytes();
    if (!Recharge()) return environment_.RefuseForMemory();
  }
  Conclude(outcome);
  return absl::OkStatus();
}

absl::Status StreamCall::Accepted(const absl::StatusOr<RequestHandle>& handle) {
  AFT_RETURN_IF_ERROR(handle.status());
  MutexLock lock(mutex_);
  handle_ = *handle;
  if (cancelled_ || failed_) CancelAll(*handle_);  // they could not be, before
  return absl::OkStatus();
}

void StreamCall::CancelAll(RequestHandle first) {
  for (uint32_t i = 0; i < sequences_; ++i) model_->engine().Cancel(first + i);
}

absl::Status StreamCall::Serialize() { return SerializeMessage(outgoing(), outgoing_bytes_); }

void StreamCall::Begin() {
  CountResumed();
  if (keeper_ != nullptr) keeper_->KeepStart();
  {
    MutexLock lock(mutex_);
    if (first_ != First::kKept) return;
    first_ = unary_ ? First::kSent : First::kMayLeave;
    if (writing_ || unary_) return;
    writing_ = true;
  }
  Pump();
}

absl::Status StreamCall::Offer(absl::FunctionRef<void()> append) {
  {
    MutexLock lock(mutex_);
    if (cancelled_ || failed_) return absl::OkStatus();  // the engine has been told, or will be
    const bool slow =
        pending_bytes() > static_cast<size_t>(environment_.limits.max_stream_buffer_bytes);
    if (!slow) append();
    if (slow || !Recharge()) {
      failed_ = true;
      DropPending();
      Recharge();
      if (!slow) {
        return absl::ResourceExhaustedError("memory: no room for an answer that is not read");
      }
      return absl::ResourceExhaustedError(
          unary_ ? "the answer is larger than max_stream_buffer_bytes: ask for less (n, "
                   "stop.max_tokens, output.top_logprobs), or Generate, which streams it"
                 : "slow client: it reads slower than the model writes");
    }
    if (writing_) return absl::OkStatus();
    writing_ = true;
  }
  Pump();
  return absl::OkStatus();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // the stream is broken
  Pump();
}

void StreamCall::OnCancel() {
  std::optional<RequestHandle> handle;
  {
    MutexLock lock(mutex_);
    if (!cancelled_) cancelled_at_ = std::chrono::steady_clock::now();
    cancelled_ = true;
    DropPending();
    hand_over_ = {};
    Recharge();
    handle = handle_;
  }
  // The slot is freed now, and not when gRPC is done with the stream: a blocked connection can
  // delay OnWriteDone and OnDone for minutes.
  if (handle.has_value()) CancelAll(*handle);
}

void StreamCall::OnDone() {
  ContextGoes();
  std::vector<std::string> lost;
  {
    MutexLock lock(mutex_);
    charge_.Close();
    undelivered_.Set(0);
    // The only Finished of a call leaves with its status: who did not cancel it has it.
    if (cancelled_ || (sequences_ > 1 && !told_all_)) lost.swap(unknown_states_);
  }
  for (const std::string& id : lost) environment_.states.Discard(*client_, id);
  environment_.active.Remove(this);  // may delete this
}

void StreamCall::Pump() {
  bool first = false;
  std::optional<Outcome> outcome;
  {
    MutexLock lock(mutex_);
    const size_t held = held_bytes();
    const bool failed = outcome_.has_value() && !outcome_->status.ok();
    if (first_ == First::kMayLeave && !failed) {
      first_ = First::kSent;
      first = true;
    } else if (first_ == First::kSent && TakePending()) {
      sending_bytes_ = held - held_bytes();
    } else if (first_ == First::kSent && outcome_.has_value() && TakeHandOver()) {
      sending_bytes_ = 0;
    } else if (outcome_.has_value()) {
      outcome = outcome_;
    } else {
      OperationEnds();
      sending_bytes_ = 0;
      writing_ = false;
      Recharge();
      return;
    }
    Recharge();
  }
  if (outcome.has_value()) return Conclude(*outcome);
  if (first) SendIds(context(), ids_, Metadata::kInitial);
  // What is pending is bounded by max_stream_buffer_bytes, far below the largest message. Should a
  // message be larger all the same, the call ends as one whose client is gone.
  if (!Serialize().ok()) TryCancel();
  OperationBegins();
  StartWrite(&outgoing_bytes_);
}

}  // namespace aft::server
