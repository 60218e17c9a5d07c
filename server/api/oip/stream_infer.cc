#include "server/api/oip/stream_infer.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server::kserve {
namespace {

// Asks, with the value "true", for a stream that ends with the first error.
constexpr char kGrpcErrorKey[] = "triton_grpc_error";

constexpr char kFinalKey[] = "triton_final_response";

// Of a response beside its tensors' data, of a token and of an alternative, on the wire, about.
constexpr size_t kPartBytes = 64;
constexpr size_t kTokenBytes = 8;
constexpr size_t kAlternativeBytes = 11;

// In memory all of that is an object.
constexpr size_t kHeldPerByte = 5;

// Of so many responses that wait, one may be several tokens: who is that far behind needs fewer.
constexpr size_t kManyParts = 1024;

size_t BytesOf(const TokenDelta& delta) {
  size_t bytes = delta.text.size();
  for (const SampledToken& token : delta.tokens) {
    bytes += kTokenBytes + token.top.size() * kAlternativeBytes;
  }
  return bytes;
}

}  // namespace

BidiReactor* StreamInfer::Start(InferEnvironment& environment,
                                grpc::CallbackServerContext& context) {
  const auto stream = std::make_shared<StreamInfer>(environment, context);
  environment.active.Add(stream);
  const absl::Status status = stream->Admit();
  if (!status.ok()) {
    environment.metrics.calls.Count(Method::kModelStreamInfer, status.code());
    SendIds(context, stream->ids_, Metadata::kTrailing);
    stream->Abort(status, status);
  } else {
    stream->ReadOn();
  }
  stream->Pump();
  return stream.get();
}

StreamInfer::StreamInfer(InferEnvironment& environment, grpc::CallbackServerContext& context)
    : ActiveCall(context),
      environment_(environment),
      undelivered_(environment.metrics.undelivered_bytes) {}

absl::Status StreamInfer::Admit() {
  AFT_RETURN_IF_ERROR(TakeIds(context(), ids_));
  AFT_ASSIGN_OR_RETURN(const auto client, Identify(environment_.identity));
  const auto asked = context().client_metadata().find(kGrpcErrorKey);
  end_on_error_ = asked != context().client_metadata().end() && asked->second == "true";
  {
    MutexLock lock(mutex_);
    if (client_ == nullptr) client_ = client;
    charge_ = MemoryLedger::Charge(environment_.ledger, *client);
    if (!Recharge()) return environment_.RefuseForMemory();
  }
  // From here on it may have to give way, which waits for Start to give back `writing_`.
  AFT_RETURN_IF_ERROR(environment_.infer_streams.Add(shared_from_this(), client->name));
  SendIds(context(), ids_, Metadata::kInitial);
  return absl::OkStatus();
}

bool StreamInfer::Recharge() {
  return HoldUnsent(kCallBytes, kHeldPerByte * part_bytes_, charge_, undelivered_);
}

void StreamInfer::ReadOn() {
  {
    MutexLock lock(mutex_);
    const bool ending = abort_.has_value() || end_when_idle_.has_value();
    if (reading_ || read_all_ || ending || calls_.size() >= kMostRequests) return;
    reading_ = true;
    StartRead(&incoming_);  // with the lock: no read may begin behind the end
  }
}

void StreamInfer::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(mutex_);
      reading_ = false;
      read_all_ = true;
    }
    return Wake();
  }
  grpc::ByteBuffer message;
  message.Swap(&incoming_);
  std::shared_ptr<InferCall> call;
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (abort_.has_value() || finished_) return;  // it crossed the end
    Caller caller{.ids = ids_,
                  .peer = context().peer(),
                  .client = client_,
                  .deadline = DeadlineOf(context())};
    call = std::make_shared<InferCall>(Method::kModelStreamInfer, environment_, std::move(caller),
                                       shared_from_this());
    calls_.emplace(call, nullptr);
    environment_.infer_streams.SetIdle(this, false);
  }
  call->Start(std::move(message));
  ReadOn();
}

absl::Status StreamInfer::SendToken(std::shared_ptr<InferCall> call, TokenDelta delta) {
  {
    MutexLock lock(mutex_);
    if (abort_.has_value()) return absl::OkStatus();  // the call has been cancelled
    if (part_bytes_ > static_cast<size_t>(environment_.limits.max_stream_buffer_bytes)) {
      return absl::ResourceExhaustedError("slow client: it reads slower than the models write");
    }
    AddToken(std::move(call), std::move(delta));
    if (!Recharge()) {
      return absl::ResourceExhaustedError("memory: no room for an answer that is not read");
    }
  }
  Wake();
  return absl::OkStatus();
}

void StreamInfer::AddToken(std::shared_ptr<InferCall> call, TokenDelta delta) {
  size_t bytes = BytesOf(delta);
  Part*& last = calls_.find(call)->second;
  if (last != nullptr && parts_.size() >= kManyParts) {
    last->token->text += delta.text;
    for (SampledToken& token : delta.tokens) last->token->tokens.push_back(std::move(token));
    last->bytes += bytes;
  } else {
    bytes += kPartBytes;
    parts_.push_back({std::move(call), std::move(delta), bytes});
    last = &parts_.back();  // which stays where it is
  }
  part_bytes_ += bytes;
}

void StreamInfer::SendEnd(std::shared_ptr<InferCall> call) {
  {
    MutexLock lock(mutex_);
    parts_.push_back({std::move(call), std::nullopt, 0});
  }
  Wake();
}

void StreamInfer::Wake() {
  {
    MutexLock lock(mutex_);
    if (writing_) return;
    writing_ = true;
  }
  Pump();
}

void StreamInfer::Pump() {
  while (true) {
    sent_ = nullptr;
    outgoing_.Clear();
    Part part;
    bool write = false;
    std::optional<absl::Status> end;
    {
      MutexLock lock(mutex_);
      const bool over = read_all_ || abort_.has_value() || end_when_idle_.has_value();
      if (!parts_.empty()) {
        const auto call = calls_.find(parts_.front().call);
        if (!parts_.front().token.has_value()) {
          calls_.erase(call);
        } else if (call->second == &parts_.front()) {
          call->second = nullptr;
        }
        part = std::move(parts_.front());
        parts_.pop_front();
        part_bytes_ -= part.bytes;
        Recharge();
        write = !abort_.has_value();
      } else if (over && calls_.empty()) {
        end = abort_.has_value() ? *abort_ : read_all_ ? absl::OkStatus() : *end_when_idle_;
        finished_ = true;
      } else {
        OperationEnds();
        writing_ = false;
        if (calls_.empty()) environment_.infer_streams.SetIdle(this, true);
        return;
      }
    }
    if (end.has_value()) {  // `writing_` is never given back
      OperationBegins();
      return Finish(ToGrpcStatus(*end, ids_.request));
    }
    sent_ = part.call;  // before the write, which may end at once
    const bool written = write && Write(part);
    if (!part.token.has_value()) ReadOn();
    if (written) return;
  }
}

bool StreamInfer::Write(const Part& part) {
  inference::ModelStreamInferResponse response;
  inference::ModelInferResponse& infer = *response.mutable_infer_response();
  if (part.token.has_value()) {
    part.call->WriteToken(*part.token, infer);
  } else if (part.call->status().ok()) {
    if (!part.call->WriteEnd(infer)) return false;
  } else {
    const absl::Status& status = part.call->status();
    if (end_on_error_) {
      Abort(status, absl::CancelledError("another request of the stream has failed"));
      return false;
    }
    infer.set_id(part.call->id());
    (*infer.mutable_parameters())[kFinalKey].set_bool_param(true);
    response.set_error_message(ToGrpcStatus(status, ids_.request).error_message());
  }
  if (const absl::Status status = SerializeMessage(response, outgoing_); !status.ok()) {
    Abort(status, absl::CancelledError("an answer of the stream was too large"));
    return false;
  }
  OperationBegins();
  StartWrite(&outgoing_);
  return true;
}

void StreamInfer::Abort(const absl::Status& status, const absl::Status& why) {
  std::vector<std::shared_ptr<InferCall>> calls;
  {
    MutexLock lock(mutex_);
    if (!abort_.has_value()) abort_ = status;
    for (const auto& [call, last] : calls_) calls.push_back(call);
  }
  for (const auto& call : calls) call->Cancel(why);
  Wake();
}

void StreamInfer::OnClient(const std::shared_ptr<const Client>& client) {
  std::vector<std::shared_ptr<InferCall>> calls;
  {
    MutexLock lock(mutex_);
    client_ = client;
    for (const auto& [call, last] : calls_) calls.push_back(call);
  }
  for (const auto& call : calls) call->OnClient(client);
}

void StreamInfer::EndWhenIdle(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!end_when_idle_.has_value()) end_when_idle_ = status;
  }
  Wake();
}

void StreamInfer::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // the stream is broken
  Pump();
}

void StreamInfer::OnCancel() {
  const absl::Status cancelled = absl::CancelledError("the client cancelled the stream");
  Abort(cancelled, stuck() ? SlowClient() : cancelled);
}

void StreamInfer::OnDone() {
  ContextGoes();
  {
    MutexLock lock(mutex_);
    charge_.Close();
    undelivered_.Set(0);
  }
  environment_.infer_streams.Remove(this);
  environment_.active.Remove(this);  // may delete this
}

void StreamInfer::OnStuck(Duration waited) {
  const double ms = std::chrono::duration<double, std::milli>(waited).count();
  std::string client;
  {
    MutexLock lock(mutex_);
    if (client_ != nullptr) client = client_->name;
  }
  log::Warning("request.stuck", {{"id", ids_.request},
                                 {"peer", context().peer()},
                                 {"client", client},
                                 {"method", MethodName(Method::kModelStreamInfer)},
                                 {"waited_ms", ms},
                                 {"trace_id", ids_.trace.trace_id}});
}

}  // namespace aft::server::kserve
