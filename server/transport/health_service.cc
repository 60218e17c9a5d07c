#include "server/transport/health_service.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

constexpr size_t kOtherFields = 256;  // room for fields of newer clients
constexpr int kMostListed = 100;      // services in an answer of List, as in grpc-go

// Whether the client, or a caller that is none (null), may know the service.
bool MayKnow(const Client* client, absl::string_view service) {
  if (!absl::ConsumePrefix(&service, kHealthOfModel)) return true;
  return client != nullptr && client->MayUse(service);
}

// Returns the service that the request names. Checks the size before it parses.
absl::StatusOr<std::string> ServiceName(const grpc::ByteBuffer& bytes) {
  AFT_RETURN_IF_ERROR(CheckLength("service", bytes.Length(), kMaxServiceNameBytes + kOtherFields));
  HealthCheckRequest request;
  AFT_RETURN_IF_ERROR(ParseMessage(bytes, request));
  AFT_RETURN_IF_ERROR(CheckLength("service", request.service().size(), kMaxServiceNameBytes));
  return request.service();
}

}  // namespace

// One Watch. As in StreamInfer, the thread that set `writing_` may start the stream's next
// operation. The status is read from the service just before it is written. A watcher that reads
// slowly therefore skips states, but always gets the newest one at the end.
class WatchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public ActiveCall,
                        public OpenStream,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService& service, grpc::CallbackServerContext& context,
            MemoryLedger::Charge charge, std::string name)
      : ActiveCall(context),
        service_(service),
        charge_(std::move(charge)),
        name_(std::move(name)) {}

  // Reads the status of the service again.
  void Wake() {
    {
      MutexLock lock(mutex_);
      if (writing_) return;
      writing_ = true;
    }
    Pump();
  }

  void End(grpc::Status status) {
    {
      MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = std::move(status);
    }
    Wake();
  }

  // A Watch never has a request to answer, so it is always idle.
  void EndWhenIdle(const absl::Status& status) override { End(ToGrpcStatus(status)); }

  void OnWriteDone(bool ok) override {
    if (!ok) End(grpc::Status::CANCELLED);
    Pump();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    ContextGoes();
    service_.Remove(shared_from_this());
  }

 private:
  // REQUIRES: the caller has set `writing_`. Resets it only if nothing has changed.
  void Pump() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(mutex_);
      end = end_;
      // A write or the end is still to come, so the context still exists.
      const HealthService::Status now = service_.FindFor(context(), name_);
      if (!end.has_value() && written_ == now) {
        OperationEnds();
        writing_ = false;
        return;
      }
      written_ = now;
      response_.set_status(now);
    }
    if (!end.has_value()) {
      const absl::Status serialized = SerializeMessage(response_, bytes_);
      if (!serialized.ok()) end = ToGrpcStatus(serialized);
    }
    OperationBegins();
    if (end.has_value()) {
      Finish(*end);
    } else {
      StartWrite(&bytes_);
    }
  }

  // A Watch belongs to its address and identifies no client. LookAgain tells it about changes.
  void OnRevoked(const absl::Status& /*why*/) override {}
  void OnStuck(Duration waited) override {
    log::Warning("watch.stuck", {{"peer", context().peer()}, {"waited_s", Seconds(waited)}});
  }

  HealthService& service_;
  const MemoryLedger::Charge charge_;
  const std::string name_;
  HealthCheckResponse response_;  // used only by the thread that set writing_, like bytes_
  grpc::ByteBuffer bytes_;
  Mutex mutex_;  // may be held while taking the service's, never the reverse
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<HealthService::Status> written_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
};

void HealthService::SetServing(const std::map<std::string, bool>& services) {
  std::map<std::string, Status> statuses;
  for (const auto& [service, serving] : services) {
    statuses[service] = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  }
  {
    MutexLock lock(mutex_);
    if (services_ == statuses) return;
    services_.swap(statuses);
  }
  LookAgain();
}

HealthService::Status HealthService::Find(const std::string& service) const {
  MutexLock lock(mutex_);
  const auto found = services_.find(service);
  return found == services_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : found->second;
}

HealthService::Status HealthService::FindFor(const grpc::CallbackServerContext& context,
                                             const std::string& service) const {
  // Probes ask often, and most ask for no model: anyone may know the rest.
  if (!absl::StartsWith(service, kHealthOfModel)) return Find(service);
  const bool may_know = MayKnow(ClientOf(context).get(), service);
  return may_know ? Find(service) : HealthCheckResponse::SERVICE_UNKNOWN;
}

std::shared_ptr<const Client> HealthService::ClientOf(
    const grpc::CallbackServerContext& context) const {
  auto client = environment_.identity.Find(FactsOf(context));
  return client.ok() ? *std::move(client) : nullptr;
}

void HealthService::LookAgain() {
  std::vector<std::shared_ptr<WatchCall>> watches;
  {
    MutexLock lock(mutex_);
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const auto& watch : watches) watch->Wake();
}

void HealthService::Remove(const std::shared_ptr<WatchCall>& call) {
  {
    MutexLock lock(mutex_);
    watches_.erase(call);
  }
  environment_.watches.Remove(call.get());
  environment_.active.Remove(call.get());
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  const auto call = UnaryCall::Start(environment_, "Check", *context, *request, *response);
  call->Close(ToGrpcStatus(Answer(*call, *request)));
  return call.get();
}

absl::Status HealthService::Answer(UnaryCall& call, const grpc::ByteBuffer& request) const {
  AFT_ASSIGN_OR_RETURN(const std::string service, ServiceName(request));
  HealthCheckResponse message;
  message.set_status(FindFor(call.context(), service));
  if (message.status() == HealthCheckResponse::SERVICE_UNKNOWN) {
    return absl::NotFoundError(absl::StrCat("no service is called \"", service, "\""));
  }
  return call.Answer(message);
}

grpc::ServerUnaryReactor* HealthService::List(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  const auto call = UnaryCall::Start(environment_, "List", *context, *request, *response);
  call->Close(ToGrpcStatus(AnswerList(*call, *request)));
  return call.get();
}

absl::Status HealthService::AnswerList(UnaryCall& call, const grpc::ByteBuffer& request) const {
  AFT_RETURN_IF_ERROR(CheckLength("request", request.Length(), kOtherFields));
  AFT_RETURN_IF_ERROR(call.ChargeTo(environment_.identity.AddressOf(FactsOf(call.context()))));
  const std::shared_ptr<const Client> client = ClientOf(call.context());
  grpc::health::v1::HealthListResponse message;
  {
    MutexLock lock(mutex_);
    for (const auto& [service, status] : services_) {
      if (!MayKnow(client.get(), service)) continue;
      (*message.mutable_statuses())[service].set_status(status);
      if (message.statuses_size() <= kMostListed) continue;
      call.NeverRetry();
      return absl::ResourceExhaustedError(
          absl::StrCat("there are more than ", kMostListed, " services; ask for one with Check"));
    }
  }
  return call.Answer(message);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  absl::StatusOr<std::string> name = ServiceName(*request);
  const auto client = environment_.identity.AddressOf(FactsOf(*context));
  MemoryLedger::Charge charge(environment_.ledger, *client);
  absl::Status status = name.status();
  if (status.ok() && !charge.Resize(kCallBytes)) {
    status = environment_.RefuseForMemory();
  }
  auto call = std::make_shared<WatchCall>(*this, *context, std::move(charge),
                                          name.ok() ? *std::move(name) : "");
  environment_.active.Add(call);
  {
    MutexLock lock(mutex_);
    watches_.insert(call);
  }
  if (status.ok()) status = environment_.watches.Add(call, client->name);
  if (status.ok()) {
    call->Wake();
  } else {
    call->End(ToGrpcStatus(status));
  }
  return call.get();  // the environment's ActiveCalls keep it until OnDone
}

}  // namespace aft::server
