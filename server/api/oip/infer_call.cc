#include "server/api/oip/infer_call.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/api/oip/model_tensors.h"
#include "server/config/checks.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server::kserve {
namespace {

constexpr int kModelField = 1;  // of ModelInferRequest
constexpr int kIdField = 3;
constexpr size_t kMaxIdBytes = 256;

// What a byte of a message can become: itself, once more while it is parsed, a typed number of
// eight, the same as a number of a tensor, a token.
constexpr size_t kBytesPerRequestByte = 22;

// What an engine's request costs beside its tokens.
constexpr size_t kEngineRequestBytes = 1024;

// An answer is kept, copied into its response, and serialised.
constexpr size_t kAnswerCopies = 3;

// What an answer of this size costs is not for the engine's thread.
constexpr size_t kLargeAnswerBytes = size_t{32} << 10;

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

// One text of an encoder's request.
class InferCall::RowSink final : public VectorSink {
 public:
  RowSink(std::shared_ptr<InferCall> call, size_t row) : call_(std::move(call)), row_(row) {}

  void OnStarted() override { call_->begun_ = true; }
  absl::Status OnPart(std::vector<float> vectors) override {
    call_->answer_->CollectRow(row_, std::move(vectors));
    return absl::OkStatus();
  }
  void OnFinished(const Outcome& outcome) override { call_->Settle(outcome); }

 private:
  const std::shared_ptr<InferCall> call_;
  const size_t row_;
};

InferCall::InferCall(Method method, InferEnvironment& environment, Caller caller,
                     std::shared_ptr<Carrier> carrier)
    : method_(method),
      environment_(environment),
      caller_(std::move(caller)),
      carrier_(std::move(carrier)),
      arrival_(std::chrono::steady_clock::now()),
      undelivered_(environment.metrics.undelivered_bytes),
      client_(caller_.client) {}

void InferCall::Start(grpc::ByteBuffer message) {
  message_.Swap(&message);
  absl::Status status = Admit();
  if (!status.ok()) return Refuse(std::move(status));
  environment_.decoders.Add(*caller_.client, message_.Length(),
                            [call = shared_from_this()] { call->Decode(); });
}

absl::Status InferCall::Admit() {
  // A refusal names the request too, as far as its id can be had without parsing.
  std::string id = PeekStrings(message_, kIdField, kMaxIdBytes).back();
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (printable) id_ = std::move(id);
  const std::optional<std::string> model = PeekString(message_, kModelField, kMaxModelNameBytes);
  if (model.has_value()) AFT_RETURN_IF_ERROR(Reserve(*model));
  charge_ = MemoryLedger::Charge(environment_.ledger, *caller_.client);
  const size_t bytes = kCallBytes + kBytesPerRequestByte * message_.Length();
  return charge_.Resize(static_cast<int64_t>(bytes)) ? absl::OkStatus()
                                                     : environment_.RefuseForMemory();
}

// As StreamCall's.
absl::Status InferCall::Reserve(const std::string& model) {
  absl::StatusOr<ModelHold> served = environment_.registry.AcquireOnly(*caller_.client, model);
  absl::Status status = served.status();
  if (served.ok()) {
    model_ = *served;
    absl::StatusOr<std::shared_ptr<Reservation>> place = model_->engine().Reserve(*caller_.client);
    status = place.status();
    if (place.ok()) reservation_ = *std::move(place);
  } else if (!absl::IsUnavailable(status) && !absl::IsPermissionDenied(status)) {
    return absl::OkStatus();  // Submit says it
  }
  if (!status.ok()) {
    metrics_ = environment_.registry.FindMetrics(model);
    model_name_ = model_ != nullptr ? model_->config.name : model;
  }
  return status;
}

void InferCall::Decode() {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (cancelled_) status = absl::CancelledError("the client cancelled the request");
  }
  if (status.ok()) status = Catching([this] { return Submit(); });
  if (!status.ok()) Refuse(std::move(status));
}

absl::Status InferCall::Submit() {
  inference::ModelInferRequest message;
  AFT_RETURN_IF_ERROR(ParseMessage(message_, message));
  message_.Clear();
  id_.clear();
  AFT_RETURN_IF_ERROR(CheckLength("id", message.id().size(), kMaxIdBytes));
  id_ = message.id();
  AFT_RETURN_IF_ERROR(FindModel(message));
  auto inference = DecodeInference(message, environment_.limits, *model_,
                                   method_ == Method::kModelInfer ? Call::kUnary : Call::kStream);
  if (!inference.ok()) {
    metrics_->rejected(Rejection::kInvalid).Increment();
    return inference.status();
  }
  streams_ = inference->streams;
  empty_final_ = inference->empty_final;
  answer_ = std::move(inference->answer);
  auto* const texts = std::get_if<std::vector<EncodingRequest>>(&inference->work);
  const size_t requests = texts != nullptr ? texts->size() : 1;
  message.Clear();
  AFT_RETURN_IF_ERROR(
      Charge(inference->tokens * sizeof(TokenId) + inference->tensor_bytes, requests));
  answer_->Prepare();
  {
    MutexLock lock(mutex_);
    left_ = requests_ = requests;
  }
  if (texts != nullptr) {
    std::vector<std::shared_ptr<VectorSink>> sinks;
    for (size_t row = 0; row < requests; ++row) {
      Fill((*texts)[row], inference->timeout);
      sinks.push_back(std::make_shared<RowSink>(shared_from_this(), row));
    }
    Accepted(model_->encode->EncodeTexts(std::move(*texts), sinks));
  } else if (auto* const generation = std::get_if<GenerationRequest>(&inference->work)) {
    Fill(*generation, inference->timeout);
    Accepted(model_->generate->Generate(std::move(*generation), shared_from_this()));
  } else {
    auto& scoring = std::get<ScoringRequest>(inference->work);
    Fill(scoring, inference->timeout);
    Accepted(model_->generate->Score(std::move(scoring), shared_from_this()));
  }
  return absl::OkStatus();
}

absl::Status InferCall::FindModel(const inference::ModelInferRequest& message) {
  AFT_RETURN_IF_ERROR(CheckLength("model_name", message.model_name().size(), kMaxModelNameBytes));
  AFT_RETURN_IF_ERROR(
      CheckLength("model_version", message.model_version().size(), kMaxModelNameBytes));
  absl::StatusOr<ModelHold> model =
      environment_.registry.Acquire(*caller_.client, message.model_name(), message.model_version());
  model_name_ = model.ok() ? (*model)->config.name : message.model_name();
  // After Acquire: a model that is served has metrics.
  metrics_ = environment_.registry.FindMetrics(model_name_);
  if (!model.ok()) return model.status();
  if (*model != model_) reservation_.reset();  // it was of another one
  model_ = *std::move(model);
  MutexLock lock(mutex_);
  found_ = true;
  return CheckModel();
}

absl::Status InferCall::CheckModel() const {
  return found_ ? ModelRegistry::CheckMayUse(*client_, model_name_) : absl::OkStatus();
}

void InferCall::OnClient(std::shared_ptr<const Client> client) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    client_ = std::move(client);
    status = CheckModel();
  }
  if (!status.ok()) Cancel(status);
}

absl::Status InferCall::Charge(size_t input_bytes, size_t requests) {
  constexpr size_t kRestOfMessage = size_t{1} << 16;  // names, shapes and parameters
  if (answer_->most_bytes() > kMaxMessageBytes - kRestOfMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("outputs: the answer may have ", answer_->most_bytes(),
                     " bytes, and a message has at most ", kMaxMessageBytes));
  }
  request_bytes_ = kCallBytes + input_bytes + requests * kEngineRequestBytes +
                   kAnswerCopies * answer_->most_bytes();
  return charge_.Resize(static_cast<int64_t>(request_bytes_)) ? absl::OkStatus()
                                                              : environment_.RefuseForMemory();
}

void InferCall::Fill(RequestHeader& header, std::chrono::microseconds timeout) {
  header.method = method_;
  header.id = caller_.ids.request;
  header.trace_id = caller_.ids.trace.trace_id;
  header.arrival = arrival_;
  header.deadline = std::min(caller_.deadline, arrival_ + environment_.limits.max_request);
  if (timeout.count() > 0) header.deadline = std::min(header.deadline, arrival_ + timeout);
  header.client = caller_.client;
  header.reservation = std::move(reservation_);
}

// `handle`: of the first of requests_.
void InferCall::Accepted(const absl::StatusOr<RequestHandle>& handle) {
  if (!handle.ok()) return Refuse(handle.status());
  bool stop = false;
  {
    MutexLock lock(mutex_);
    handle_ = *handle;
    stop = cancelled_ || failed_;
  }
  if (stop) CancelAll(*handle);  // they could not be, before
}

void InferCall::CancelAll(RequestHandle first) {
  for (size_t i = 0; i < requests_; ++i) model_->engine().Cancel(first + i);
}

void InferCall::Refuse(absl::Status status) {
  refused_ = true;
  reservation_.reset();
  outcome_.status = std::move(status);
  outcome_.timings.total = std::chrono::steady_clock::now() - arrival_;
  End();
}

void InferCall::Cancel(const absl::Status& why) {
  std::optional<RequestHandle> handle;
  {
    MutexLock lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    cancelled_with_ = why;
    cancelled_at_ = std::chrono::steady_clock::now();
    handle = handle_;
  }
  if (handle.has_value()) CancelAll(*handle);
}

absl::Status InferCall::OnPart(TokenDelta delta) {
  if (streams_) return carrier_->SendToken(shared_from_this(), std::move(delta));
  answer_->Collect(std::move(delta));
  const size_t held = answer_->held_bytes();
  if (held > static_cast<size_t>(environment_.limits.max_stream_buffer_bytes)) {
    return absl::ResourceExhaustedError(
        "the answer is longer than limits.max_stream_buffer_bytes; a stream of tokens may be "
        "longer");
  }
  constexpr int64_t kSlack = 4096;
  const auto needed = static_cast<int64_t>(request_bytes_ + kAnswerCopies * held);
  if (needed <= charge_.bytes()) return absl::OkStatus();
  undelivered_.Set(static_cast<double>(held));
  if (charge_.Resize(needed + kSlack)) return absl::OkStatus();
  return absl::ResourceExhaustedError("memory: no room for an answer that is not sent");
}

void InferCall::Settle(Outcome outcome) {
  bool last = false;
  std::optional<RequestHandle> others;
  {
    MutexLock lock(mutex_);
    last = --left_ == 0;
    computed_tokens_ += outcome.computed_tokens;
    if (!failed_) {
      failed_ = !outcome.status.ok();
      if (failed_ && !last) others = handle_;
      outcome.usage.prompt_tokens += outcome_.usage.prompt_tokens;
      outcome_ = std::move(outcome);
    }
  }
  if (others.has_value()) CancelAll(*others);
  if (last) End();
}

void InferCall::End() {
  outcome_.status = FinalStatus();
  Report();
  if (answer_ == nullptr || answer_->most_bytes() < kLargeAnswerBytes) {
    return carrier_->SendEnd(shared_from_this());
  }
  environment_.decoders.Add(*caller_.client, answer_->most_bytes(),
                            [call = shared_from_this()] { call->carrier_->SendEnd(call); });
}

absl::Status InferCall::FinalStatus() const {
  if (!absl::IsCancelled(outcome_.status)) return outcome_.status;
  MutexLock lock(mutex_);
  if (!cancelled_) return outcome_.status;
  return absl::IsCancelled(cancelled_with_) &&
                 EndedByDeadline(cancelled_at_, arrival_, caller_.deadline)
             ? absl::DeadlineExceededError(outcome_.status.message())
             : cancelled_with_;
}

void InferCall::Report() {
  const absl::StatusCode code = outcome_.status.code();
  const Duration total = std::chrono::steady_clock::now() - arrival_;
  if (!refused_) metrics_->calls.Observe(method_, total);
  (metrics_ != nullptr ? metrics_->calls : environment_.metrics.calls).Count(method_, code);
  if (model_ != nullptr) {
    environment_.statistics.Record(*model_, outcome_.status, outcome_.timings);
  }
  const Timings& timings = outcome_.timings;
  if (outcome_.status.ok()) environment_.retry_hint.Record(timings.total - timings.queue);
  const Usage& usage = outcome_.usage;
  environment_.client_metrics.Count(caller_.client->name, code, computed_tokens_);
  const bool defect = code == absl::StatusCode::kInternal;
  if (refused_ && !defect && !environment_.LogsRefusal()) return;
  const auto log = defect ? log::Error : log::Info;
  const absl::string_view reason = kFinishReasonNames[static_cast<size_t>(outcome_.reason)];
  const Phases phases(timings);
  log("request.done", {{"id", caller_.ids.request},
                       {"peer", caller_.peer},
                       {"client", caller_.client->name},
                       {"method", MethodName(method_)},
                       {"model", model_name_},
                       {"code", absl::StatusCodeToString(code)},
                       {"reason", outcome_.status.ok() ? reason : outcome_.status.message()},
                       {"n", 1},
                       {"prompt_tokens", usage.prompt_tokens},
                       {"generated_tokens", usage.generated_tokens},
                       {"resumed_tokens", usage.resumed_tokens},
                       {"queue_ms", Milliseconds(timings.queue)},
                       {"ttft_ms", Milliseconds(timings.first_token)},
                       {"total_ms", Milliseconds(total)},
                       {"cached_tokens", usage.cached_tokens},
                       {"cache_miss", kCacheMissNames[static_cast<size_t>(usage.cache_miss)]},
                       {"diverged_at", usage.diverged_at},
                       {"prefill_ms", Milliseconds(phases.prefill)},
                       {"decode_ms", Milliseconds(phases.decode)},
                       {"trace_id", caller_.ids.trace.trace_id},
                       {"span_id", caller_.ids.trace.span_id},
                       {"parent_id", caller_.ids.trace.parent_id}});
}

void InferCall::FillNames(inference::ModelInferResponse& response, bool final) const {
  response.set_model_name(model_->config.name);
  response.set_model_version(model_->config.version);
  response.set_id(id_);
  if (method_ == Method::kModelStreamInfer) {
    (*response.mutable_parameters())["triton_final_response"].set_bool_param(final);
  }
}

void InferCall::WriteToken(const TokenDelta& delta, inference::ModelInferResponse& response) {
  FillNames(response, /*final=*/false);
  answer_->WriteToken(delta, response);
}

bool InferCall::WriteEnd(inference::ModelInferResponse& response) {
  FillNames(response, /*final=*/true);
  answer_->WriteEnd(outcome_, response);
  return !streams_ || empty_final_ || response.outputs_size() > 0;
}

std::optional<int64_t> InferCall::RetryAfterMs() const {
  if (begun_ || !absl::IsResourceExhausted(outcome_.status)) return std::nullopt;
  const EngineLoad load = model_ != nullptr ? model_->engine().load() : EngineLoad();
  return environment_.retry_hint.After(load).count();
}

}  // namespace aft::server::kserve
