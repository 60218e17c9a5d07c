#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/transport/unary_call.h"

namespace aft::server {

class WatchCall;

// Before the name of a model: the service that its health is asked for as.
inline constexpr absl::string_view kHealthOfModel = "aft.v1.InferenceService/";

// grpc.health.v1.Health, answered from what SetServing says. gRPC's built-in service is not used:
// it says SERVING as soon as the port is open. It asks nobody who calls, with one exception: where
// the clients are known, a model's health is told to those that may use the model, and to all
// others the model is as unknown as one that does not exist.
//
// Thread-safety: all methods may be called from any thread. Must outlive every call, that is, be
// destroyed after the gRPC server.
class HealthService final : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
                                grpc::health::v1::Health::WithRawCallbackMethod_Watch<
                                    grpc::health::v1::Health::Service>> {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  explicit HealthService(const TransportEnvironment& environment) : environment_(environment) {}

  // Sets, all at the same moment, which services serve. Services are unknown until they are set.
  // Watchers hear of a change at once.
  void SetServing(const std::map<std::string, bool>& services);

  // SERVICE_UNKNOWN for a service that was never set.
  Status Find(const std::string& service) const;

  // Who may know of which models has changed: watchers hear of what that means for them.
  void LookAgain();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  friend class WatchCall;

  void Remove(const std::shared_ptr<WatchCall>& call);
  // What may be told to who calls with that context, which is there. SERVICE_UNKNOWN as Find.
  Status FindFor(const grpc::CallbackServerContext& context, const std::string& service) const;
  // Answers Check. NOT_FOUND: no such service.
  absl::Status Answer(UnaryCall& call, const grpc::ByteBuffer& request) const;

  const TransportEnvironment environment_;
  mutable Mutex mutex_;
  std::map<std::string, Status> services_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server
