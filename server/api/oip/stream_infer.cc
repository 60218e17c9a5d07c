#include "server/api/oip/stream_infer.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/catching.h"
#include "base/status_macros.h"
#include "server/api/oip/infer_exchange.h"
#include "server/call/call_ids.h"
#include "server/call/call_report.h"
#include "server/transport/call_carrier.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server::oip {
namespace {

// With the value "true", the stream ends with the first error.
constexpr char kGrpcErrorKey[] = "triton_grpc_error";

}  // namespace

BidiReactor* StreamInfer::Start(TransportEnvironment& transport, InferenceEnvironment& inference,
                                Statistics& statistics, grpc::CallbackServerContext& context) {
  const auto arrival = std::chrono::steady_clock::now();
  const auto stream = std::make_shared<StreamInfer>(transport, inference, statistics, context);
  transport.active.Add(stream);
  const absl::Status status = stream->Admit();
  if (!status.ok()) {
    ReportRefusal(transport, inference.client_metrics, stream->caller_, Method::kModelStreamInfer,
                  status, std::chrono::steady_clock::now() - arrival);
    SendIds(context, stream->caller_.ids, Metadata::kTrailing);
    stream->Abort(status, status);
  } else {
    stream->ReadOn();
  }
  stream->Pump();
  return stream.get();
}

StreamInfer::StreamInfer(TransportEnvironment& transport, InferenceEnvironment& inference,
                         Statistics& statistics, grpc::CallbackServerContext& context)
    : ActiveCall(context), transport_(transport), inference_(inference), statistics_(statistics) {}

absl::Status StreamInfer::Admit() {
  caller_.peer = context().peer();
  caller_.deadline = DeadlineOf(context());
  AFT_RETURN_IF_ERROR(TakeIds(context(), caller_.ids));
  AFT_ASSIGN_OR_RETURN(caller_.client, Identify(transport_.identity));
  AFT_ASSIGN_OR_RETURN(caller_.cache_salt, transport_.identity.CacheSaltOf(FactsOf(context())));
  const auto asked = context().client_metadata().find(kGrpcErrorKey);
  end_on_error_ = asked != context().client_metadata().end() && asked->second == "true";
  {
    MutexLock lock(mutex_);
    if (client_ == nullptr) client_ = caller_.client;
    charge_ = MemoryLedger::Charge(transport_.ledger, *caller_.client);
    if (!charge_.Resize(kCallBytes)) return transport_.RefuseForMemory();
  }
  // From here on, the stream may have to give way. That waits until Start resets `writing_`.
  AFT_RETURN_IF_ERROR(transport_.infer_streams.Add(shared_from_this(), caller_.client->name));
  SendIds(context(), caller_.ids, Metadata::kInitial);
  return absl::OkStatus();
}

void StreamInfer::ReadOn() {
  MutexLock lock(mutex_);
  const bool ending = abort_.has_value() || end_when_idle_.has_value();
  if (reading_ || read_all_ || ending || calls_.size() >= kMostRequests) return;
  reading_ = true;
  StartRead(&incoming_);  // with the lock: no read may begin after the end
}

void StreamInfer::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(mutex_);
      reading_ = false;
      read_all_ = true;
    }
    return WakeStream();
  }
  auto message = std::make_unique<GrpcRequestBytes>(std::exchange(incoming_, {}));
  auto exchange = std::make_unique<InferExchange>(statistics_, unread_);
  InferExchange& infer = *exchange;
  const auto call = std::make_shared<Call>(inference_, std::move(exchange), shared_from_this());
  infer.OnDecoupled([this, &decoupled = *call] {
    {
      MutexLock lock(mutex_);
      if (!LeaveOrder(decoupled) || std::exchange(writing_, true)) return;
    }
    // Another thread makes the answer of the other call, and fails without failing this request.
    transport_.sender.Post(shared_from_this());
  });
  Caller caller = caller_;
  // The first request has the span that the stream's metadata name.
  if (std::exchange(began_, true)) BeginChild(caller.ids.trace);
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (abort_.has_value() || finished_) return;  // the stream has ended in the meantime
    caller.client = client_;
    calls_.emplace(call.get(), Open{.call = call});
    order_.push_back(call.get());
    transport_.infer_streams.SetIdle(this, false);
  }
  call->Start(std::move(caller), absl::OkStatus(), std::move(message));
  ReadOn();
}

void StreamInfer::Wake(Call& call) {
  if (TakeTurn(call)) Pump();
}

void StreamInfer::WakeLater(Call& call) {
  if (TakeTurn(call)) transport_.sender.Post(shared_from_this());
}

bool StreamInfer::TakeTurn(Call& call) {
  MutexLock lock(mutex_);
  const auto found = calls_.find(&call);
  if (found == calls_.end()) return false;  // its last response is being sent
  const bool waited = std::exchange(found->second.waits, true);
  const auto place = std::find(order_.begin(), order_.end(), &call);
  const bool may_send = place == order_.end() || place == order_.begin();
  if (!waited && may_send) turns_.push_back(&call);
  return !std::exchange(writing_, true);
}

bool StreamInfer::LeaveOrder(Call& call) {
  const auto place = std::find(order_.begin(), order_.end(), &call);
  if (place == order_.end()) return false;
  const bool first = place == order_.begin();
  order_.erase(place);
  if (!first || order_.empty() || !calls_.find(order_.front())->second.waits) return false;
  turns_.push_back(order_.front());
  return true;
}

void StreamInfer::WakeStream() {
  {
    MutexLock lock(mutex_);
    if (writing_) return;
    writing_ = true;
  }
  Pump();
}

void StreamInfer::Pump() {
  while (true) {
    if (sent_ != nullptr) {
      sent_->Written();
      if (sent_last_) sent_->Close();
      sent_ = nullptr;
    }
    outgoing_.Clear();
    std::shared_ptr<Call> call;
    std::optional<absl::Status> end;
    {
      MutexLock lock(mutex_);
      const bool over = read_all_ || abort_.has_value() || end_when_idle_.has_value();
      if (!turns_.empty()) {
        Open& open = calls_.find(turns_.front())->second;
        turns_.pop_front();
        open.waits = false;
        call = open.call;
      } else if (over && calls_.empty()) {
        end = abort_.has_value() ? *abort_ : read_all_ ? absl::OkStatus() : *end_when_idle_;
        finished_ = true;
      } else {
        writing_ = false;
        if (calls_.empty()) transport_.infer_streams.SetIdle(this, true);
        return;
      }
    }
    if (end.has_value()) {  // keeps `writing_` for good
      OperationBegins();
      return Finish(ToGrpcStatus(*end, caller_.ids.request));
    }
    if (SendNext(call)) return;
  }
}

bool StreamInfer::SendNext(const std::shared_ptr<Call>& call) {
  const Call::Next next = call->Take();
  if (next == Call::Next::kNothing) return false;
  bool aborted = false;
  {
    MutexLock lock(mutex_);
    aborted = abort_.has_value();
    Open& open = calls_.find(call.get())->second;
    if (next == Call::Next::kEnd) {
      if (open.waits) turns_.erase(std::find(turns_.begin(), turns_.end(), call.get()));
      LeaveOrder(*call);
      calls_.erase(call.get());
    } else if (!open.waits) {  // goes after the others, as it may have more
      turns_.push_back(call.get());
      open.waits = true;
    }
  }
  sent_ = call;  // set before the write, which may end at once
  sent_last_ = next == Call::Next::kEnd;
  const bool written = !aborted && Write(call);
  if (next == Call::Next::kEnd) ReadOn();
  return written;
}

absl::Status StreamInfer::Serialize(const google::protobuf::MessageLite& message) {
  return SerializeMessage(message, outgoing_);
}

bool StreamInfer::Write(const std::shared_ptr<Call>& call) {
  auto& exchange = static_cast<InferExchange&>(call->exchange());
  const auto serialize = [&] { return Serialize(exchange.outgoing()); };
  absl::Status status;
  if (!sent_last_) {
    status = Catching(serialize);
  } else if (status = call->ending().status; !status.ok() && !end_on_error_) {
    exchange.SetError(ToGrpcStatus(status, caller_.ids.request).error_message());
    status = Catching(serialize);
  } else if (status.ok() && !call->ending().message) {
    return false;
  }
  if (!status.ok()) {
    Abort(status, absl::CancelledError("another request of the stream has failed"));
    return false;
  }
  OperationBegins();
  StartWrite(&outgoing_);
  return true;
}

std::vector<std::shared_ptr<Call>> StreamInfer::calls() const {
  std::vector<std::shared_ptr<Call>> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, open] : calls_) calls.push_back(open.call);
  return calls;
}

void StreamInfer::Abort(const absl::Status& status, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!abort_.has_value()) abort_ = status;
  }
  for (const auto& call : calls()) call->Cancel(why);
  WakeStream();
}

void StreamInfer::OnClient(const std::shared_ptr<const Client>& client) {
  {
    MutexLock lock(mutex_);
    client_ = client;
  }
  for (const auto& call : calls()) call->OnClient(client);
}

void StreamInfer::EndWhenIdle(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!end_when_idle_.has_value()) end_when_idle_ = status;
  }
  WakeStream();
}

void StreamInfer::OnWriteDone(bool ok) {
  OperationEnds();
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
  }
  transport_.infer_streams.Remove(this);
  transport_.active.Remove(this);  // may delete this
}

void StreamInfer::OnStuck(Duration waited) { LogStuck(caller_, Method::kModelStreamInfer, waited); }

}  // namespace aft::server::oip
