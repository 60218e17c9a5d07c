#include "server/rpc/health_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aft::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch. As in StreamCall, `writing_` is the right to start the stream's next operation. What
// is written is read from the service at that moment, so a watcher that reads slowly skips states
// but always ends at the newest.
class WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService& service, std::string name) : service_(service), name_(std::move(name)) {}

  // Looks at the service again.
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

  void OnWriteDone(bool ok) override {
    if (!ok) End(grpc::Status::CANCELLED);
    Pump();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { service_.Remove(shared_from_this()); }

 private:
  // REQUIRES: the caller took `writing_`. Given back only when nothing has changed.
  void Pump() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(mutex_);
      end = end_;
      const HealthService::Status now = service_.Find(name_);
      if (!end.has_value() && written_ == now) {
        writing_ = false;
        return;
      }
      written_ = now;
      response_.set_status(now);
    }
    if (end.has_value()) {
      Finish(*end);
    } else {
      StartWrite(&response_);
    }
  }

  HealthService& service_;
  const std::string name_;
  HealthCheckResponse response_;  // of whoever has the right to write
  Mutex mutex_;                   // may be held while taking the service's, never the reverse
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<HealthService::Status> written_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
};

void HealthService::SetServing(const std::map<std::string, bool>& services) {
  std::vector<std::shared_ptr<WatchCall>> watches;
  {
    MutexLock lock(mutex_);
    for (const auto& [service, serving] : services) {
      services_[service] =
          serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    }
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const auto& watch : watches) watch->Wake();
}

HealthService::Status HealthService::Find(const std::string& service) const {
  MutexLock lock(mutex_);
  const auto found = services_.find(service);
  return found == services_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : found->second;
}

void HealthService::EndWatches() {
  std::vector<std::shared_ptr<WatchCall>> watches;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const auto& watch : watches) {
    watch->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }
}

void HealthService::Remove(const std::shared_ptr<WatchCall>& call) {
  MutexLock lock(mutex_);
  watches_.erase(call);
  active_.Remove();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  const Status status = Find(request->service());
  response->set_status(status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(
      status == HealthCheckResponse::SERVICE_UNKNOWN
          ? grpc::Status(grpc::StatusCode::NOT_FOUND,
                         absl::StrCat("no service is called \"", request->service(), "\""))
          : grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  auto call = std::make_shared<WatchCall>(*this, request->service());
  bool ended = false;
  {
    MutexLock lock(mutex_);
    watches_.insert(call);
    active_.Add();
    ended = ended_;
  }
  if (ended) {
    call->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  } else {
    call->Wake();
  }
  return call.get();  // watches_ keeps it until OnDone
}

}  // namespace aft::server
