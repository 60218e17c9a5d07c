#include "server/api/aft/state_transfer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/call/call_report.h"
#include "server/call/carrier.h"
#include "server/config/checks.h"
#include "server/config/config.h"
#include "server/registry/model_table.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

// The memory that a message of an import takes: as bytes, parsed, and its chunk.
constexpr size_t kMessageCopies = 3;

// The largest size of a sealed state of this model. The note of a response repeats the instructions
// and the metadata of its request, and has at most 16 bytes for each token of the answer
// (ResponsesExchange).
int64_t MostSealedBytes(const ModelInfo& info, const LimitsConfig& limits) {
  constexpr int64_t kFurther = int64_t{64} << 10;  // metadata, other fields and the seal
  const int64_t note = limits.max_message_bytes + 16 * int64_t{limits.max_max_tokens};
  return MaxStateBytes(info, std::max(info.max_seq_len, info.vocab_size), /*added=*/0) + note +
         kFurther;
}

// The base of both calls. At most one operation is under way; the thread that ends it starts the
// next one.
class Transfer : public ActiveCall, public std::enable_shared_from_this<Transfer> {
 protected:
  Transfer(Method method, StateEnvironment& environment, grpc::CallbackServerContext& context)
      : ActiveCall(context), environment_(environment), method_(method) {}

  absl::Status Admit() {
    caller_.peer = context().peer();
    AFT_RETURN_IF_ERROR(TakeIds(context(), caller_.ids));
    AFT_ASSIGN_OR_RETURN(caller_.client, Identify(environment_.identity));
    charge_ = MemoryLedger::Charge(environment_.ledger, *caller_.client);
    return Hold(0);
  }

  // From now on the call holds kCallBytes and `bytes` of memory.
  absl::Status Hold(size_t bytes) {
    const size_t held = kCallBytes + bytes;
    return charge_.Resize(static_cast<int64_t>(held)) ? absl::OkStatus() : Refuse(held);
  }

  // The error if the call cannot hold `bytes` of memory now, or ever.
  absl::Status Refuse(size_t bytes) const {
    return environment_.RefuseForMemory({bytes, charge_.MayEverHold(static_cast<int64_t>(bytes))},
                                        "the call");
  }

  // Runs `work` in the decode pool. The call ends if `work` fails or throws.
  template <typename Work>
  void InPool(size_t bytes, Work work) {
    environment_.decoders.Add(*caller_.client, bytes, [this, self = shared_from_this(), work] {
      const absl::Status status = cancelled_ ? Gone() : Catching(work);
      if (!status.ok()) End(status);
    });
  }

  virtual void End(const absl::Status& status) = 0;

  // The status of a call that is over for the client, because it has cancelled or stalled.
  absl::Status Gone() const {
    if (!stuck()) return absl::CancelledError("the client cancelled the call");
    if (method_ == Method::kExportState) return SlowClient();
    return absl::ResourceExhaustedError("slow client: it did not send for limits.write_stall_ms");
  }

  // Is called before the first message.
  void Begin() {
    begun_ = true;
    SendIds(context(), caller_.ids, Metadata::kInitial);
  }

  // Is called before the reactor's Finish.
  grpc::Status Conclude(absl::Status status) {
    OperationBegins();
    if (!status.ok()) {
      MutexLock lock(mutex_);
      if (!revoked_.ok()) status = revoked_;
    }
    if (cut_) {
      cut_with_ = status;
    } else {
      Report(status);
    }
    if (!begun_) SendIds(context(), caller_.ids, Metadata::kTrailing);
    if (absl::IsResourceExhausted(status)) {
      context().AddTrailingMetadata(kRetryPushbackKey, too_large_ ? kNeverRetry : kRetryAfterMs);
    }
    return ToGrpcStatus(status, caller_.ids.request);
  }

  void Cancelled() { cancelled_ = true; }
  void Done() {
    ContextGoes();
    if (cut_) Report(cancelled_ ? Gone() : cut_with_);
    charge_.Close();
    environment_.active.Remove(this);  // may delete this
  }
  void Report(const absl::Status& status) const {
    ReportWithoutModel(environment_, caller_, method_, arrival_, status);
  }
  void OnStuck(Duration waited) override { LogStuck(caller_, method_, waited); }

  StateEnvironment& environment_;
  const Method method_;
  const TimePoint arrival_ = std::chrono::steady_clock::now();
  Caller caller_;  // without a client until it is identified
  MemoryLedger::Charge charge_;
  bool begun_ = false;
  bool too_large_ = false;  // a message of the client
  // The client's messages ended too early. Either the client has sent too little, or it is gone:
  // then gRPC may call OnCancel after the end, but before OnDone. Therefore Done reports the call.
  bool cut_ = false;
  absl::Status cut_with_;  // the status of such a call if the client is not gone
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // the reason, once revoked
};

class ExportCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Transfer {
 public:
  ExportCall(StateEnvironment& environment, grpc::CallbackServerContext& context)
      : Transfer(Method::kExportState, environment, context) {}

  void Start(const grpc::ByteBuffer& bytes) {
    absl::Status status = Admit();
    // A message may wait for a decode thread only if what was charged covers it.
    if (status.ok()) status = StateAccess::CheckRequestBytes(bytes.Length());
    if (!status.ok()) return End(status);
    InPool(bytes.Length(), [this, &bytes] { return Find(bytes); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(Gone());
    WriteNext();
  }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }

 private:
  absl::Status Find(const grpc::ByteBuffer& bytes) {
    v1::StateServiceExportRequest request;
    AFT_RETURN_IF_ERROR(ParseMessage(bytes, request));
    environment_.states.Look(*caller_.client, "id", request.id(),
                             [this, self = shared_from_this()](absl::StatusOr<StoredState> stored) {
                               if (!stored.ok()) return End(stored.status());
                               InPool(static_cast<size_t>(stored->bytes),
                                      [this, state = stored->state] { return Send(*state); });
                             });
    return absl::OkStatus();
  }

  absl::Status Send(const SequenceState& state) {
    AFT_RETURN_IF_ERROR(
        Hold(static_cast<size_t>(StateSealer::SealedBytes(state)) + 2 * kStateChunkBytes));
    AFT_ASSIGN_OR_RETURN(sealed_, environment_.states.sealer().Seal(state));
    Begin();
    WriteNext();
    return absl::OkStatus();
  }

  // The call ends after the write that is under way.
  void OnRevoked(const absl::Status& why) override {
    MutexLock lock(mutex_);
    revoked_ = why;
  }

  void WriteNext() {
    if (next_ == sealed_.size()) return End(absl::OkStatus());
    absl::Status revoked;
    {
      MutexLock lock(mutex_);
      revoked = revoked_;
    }
    if (!revoked.ok()) return End(revoked);
    v1::StateServiceExportResponse response;
    response.set_chunk(sealed_.substr(next_, kStateChunkBytes));
    next_ += response.chunk().size();
    if (absl::Status status = SerializeMessage(response, outgoing_); !status.ok()) {
      return End(status);
    }
    OperationBegins();
    StartWrite(&outgoing_);
  }

  void End(const absl::Status& status) override { Finish(Conclude(status)); }

  std::string sealed_;
  size_t next_ = 0;
  grpc::ByteBuffer outgoing_;
};

class ImportCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>, public Transfer {
 public:
  ImportCall(StateEnvironment& environment, grpc::CallbackServerContext& context,
             grpc::ByteBuffer& response)
      : Transfer(Method::kImportState, environment, context), response_(response) {}

  void Start() {
    const absl::Status status = Admit();
    if (!status.ok()) return End(status);
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      if (!std::exchange(reading_, false)) return;  // the call has ended in the meantime
    }
    OperationEnds();
    if (ok) {
      const absl::Status held = HoldIncoming();
      if (!held.ok()) return End(held);
      return InPool(incoming_.Length(), [this] { return Take(); });
    }
    cut_ = true;
    InPool(0, [this] {
      if (bytes_ == 0) return BadField("bytes", "must be at least 1, but no message has arrived");
      return BadField("chunk",
                      absl::StrCat("only ", sealed_.size(), " of bytes=", bytes_, " have arrived"));
    });
  }
  void OnCancel() override { Cancelled(); }
  void OnDone() override {
    if (cancelled_ && !stored_.empty()) environment_.states.Discard(*caller_.client, stored_);
    Done();
  }

 private:
  // Ends the call at once if it waits for a message. Otherwise the thread that works on a message
  // sees `revoked_`.
  void OnRevoked(const absl::Status& why) override {
    {
      MutexLock lock(mutex_);
      revoked_ = why;
      if (!std::exchange(reading_, false)) return;
    }
    End(why);
  }

  void ReadNext() {
    absl::Status revoked;
    {
      MutexLock lock(mutex_);
      revoked = revoked_;
      if (revoked.ok()) {
        reading_ = true;
        OperationBegins();
        StartRead(&incoming_);  // with the lock: no read may begin after the end
      }
    }
    if (!revoked.ok()) End(revoked);
  }

  // Charges the message that has arrived, before it waits for a decode thread.
  absl::Status HoldIncoming() {
    const absl::Status fits = environment_.CheckMessage(incoming_.Length());
    too_large_ = !fits.ok();
    AFT_RETURN_IF_ERROR(fits);
    return Hold(bytes_ + kMessageCopies * incoming_.Length());
  }

  absl::Status Take() {
    if (std::chrono::steady_clock::now() - arrival_ > environment_.limits.max_request) {
      return absl::DeadlineExceededError("the import takes longer than limits.max_request_ms");
    }
    const size_t message = kMessageCopies * incoming_.Length();
    v1::StateServiceImportRequest request;
    AFT_RETURN_IF_ERROR(ParseMessage(incoming_, request));
    incoming_.Clear();
    if (bytes_ == 0) AFT_RETURN_IF_ERROR(Announced(request, message));
    if (request.chunk().size() > bytes_ - sealed_.size()) {
      return BadField("chunk", absl::StrCat("more has arrived than bytes=", bytes_));
    }
    sealed_ += request.chunk();
    if (sealed_.size() == bytes_) return Open();
    ReadNext();
    return absl::OkStatus();
  }

  // `message`: the memory of the request.
  absl::Status Announced(const v1::StateServiceImportRequest& request, size_t message) {
    AFT_RETURN_IF_ERROR(CheckLength("model", request.model().size(), kMaxModelNameBytes));
    AFT_ASSIGN_OR_RETURN(const ModelHold model,
                         environment_.registry.Look(*caller_.client, request.model()));
    model_name_ = model->config.name;
    AFT_RETURN_IF_ERROR(Require([name = model_name_](const Client& client) {
      return ModelTable::CheckMayUse(client, name);
    }));
    AFT_ASSIGN_OR_RETURN(const uint64_t most, MostBytes(*model));
    if (request.bytes() < 1 || request.bytes() > most) {
      return BadField("bytes",
                      absl::StrCat("must be in [1, ", most, "], the largest that a state ", "of \"",
                                   model_name_, "\" can be, got ", request.bytes()));
    }
    bytes_ = static_cast<size_t>(request.bytes());
    // Open needs this memory. A state that can never fit is refused before it is sent.
    const size_t opened = kCallBytes + 2 * bytes_;
    if (!charge_.MayEverHold(static_cast<int64_t>(opened))) return Refuse(opened);
    AFT_ASSIGN_OR_RETURN(
        place_, environment_.states.Reserve(*caller_.client, request.store(),
                                            kStateObjectBytes + static_cast<int64_t>(bytes_)));
    AFT_RETURN_IF_ERROR(Hold(bytes_ + message));
    sealed_.reserve(bytes_);  // all of it is charged, so it must not grow by doubling
    return absl::OkStatus();
  }

  // The largest size of a sealed state of any version that serves, because Open accepts a state of
  // each of them. `newest`: the version that requests without a version get.
  absl::StatusOr<uint64_t> MostBytes(const ServedModel& newest) const {
    AFT_ASSIGN_OR_RETURN(const ModelStatus status,
                         environment_.registry.Get(*caller_.client, model_name_));
    int64_t most = MostSealedBytes(newest.info, environment_.limits);
    for (const VersionStatus& version : status.versions) {
      if (version.state != ModelState::kReady) continue;
      const auto model = environment_.registry.Look(*caller_.client, model_name_, version.version);
      if (model.ok()) most = std::max(most, MostSealedBytes((*model)->info, environment_.limits));
    }
    return static_cast<uint64_t>(most);
  }

  absl::Status Open() {
    AFT_RETURN_IF_ERROR(Hold(2 * sealed_.size()));
    AFT_ASSIGN_OR_RETURN(SequenceState state, environment_.states.Open("chunk", sealed_));
    AFT_ASSIGN_OR_RETURN(ModelHold model, environment_.registry.Look(*caller_.client, model_name_));
    model = environment_.registry.Matching(model, state.model);
    AFT_RETURN_IF_ERROR(CheckStateOf(state, model->info, model_name_));
    environment_.states.Put(std::move(place_), *caller_.client, model_name_, std::move(state),
                            [this, self = shared_from_this()](absl::StatusOr<v1::State> stored) {
                              Answer(std::move(stored));
                            });
    return absl::OkStatus();
  }

  void Answer(absl::StatusOr<v1::State> stored) {
    absl::Status status = stored.status();
    if (status.ok()) {
      v1::StateServiceImportResponse message;
      *message.mutable_state() = *std::move(stored);
      stored_ = message.state().id();
      status = SerializeMessage(message, response_);
    }
    if (status.ok()) Begin();
    End(status);
  }

  void End(const absl::Status& status) override {
    place_ = {};
    Finish(Conclude(status));
  }

  grpc::ByteBuffer& response_;
  grpc::ByteBuffer incoming_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  // From the first message, which has not arrived while bytes_ is 0. The model itself is held only
  // while the state is checked. A client that sends slowly must not keep a retired version in
  // memory.
  std::string model_name_;
  size_t bytes_ = 0;
  StateAccess::Place place_;
  std::string sealed_;
  std::string stored_;  // id; set before Finish
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartExport(StateEnvironment& environment,
                                                        grpc::CallbackServerContext& context,
                                                        const grpc::ByteBuffer& request) {
  const auto call = std::make_shared<ExportCall>(environment, context);
  environment.active.Add(call);
  call->Start(request);
  return call.get();
}

grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(StateEnvironment& environment,
                                                       grpc::CallbackServerContext& context,
                                                       grpc::ByteBuffer& response) {
  const auto call = std::make_shared<ImportCall>(environment, context, response);
  environment.active.Add(call);
  call->Start();
  return call.get();
}

}  // namespace aft::server
