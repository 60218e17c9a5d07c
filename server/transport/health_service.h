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

// A model's health has this prefix before the model's name as its service.
inline constexpr absl::string_view kHealthOfModel = "aft.v1.InferenceService/";

// Implements grpc.health.v1.Health from what SetServing sets. gRPC's built-in service is not used,
// because it says SERVING as soon as the port is open. Callers need not identify themselves, with
// one exception. With known clients, the health of a model is told only to clients that may use the
// model. To all others the model is unknown, like a model that does not exist. An answer of Check
// is so small that it is charged to nothing. The other calls are charged to their addresses.
//
// Thread-safety: all methods may be called from any thread. The service must outlive every call, so
// it must be destroyed after the gRPC server.
class HealthService final : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
                                grpc::health::v1::Health::WithRawCallbackMethod_Watch<
                                    grpc::health::v1::Health::WithRawCallbackMethod_List<
                                        grpc::health::v1::Health::Service>>> {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  explicit HealthService(const TransportEnvironment& environment) : environment_(environment) {}

  // Sets all services and whether they serve. All others are unknown from now on. Watchers are told
  // of a change at once.
  void SetServing(const std::map<std::string, bool>& services);

  // SERVICE_UNKNOWN for a service that is not set.
  Status Find(const std::string& service) const;

  // The set of models that clients may use has changed: tells watchers whose status differs now.
  void LookAgain();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;

 private:
  friend class WatchCall;

  void Remove(const std::shared_ptr<WatchCall>& call);
  // The client with that context, which must still exist. Null if the server knows clients, and the
  // caller is none of them.
  std::shared_ptr<const Client> ClientOf(const grpc::CallbackServerContext& context) const;
  // The status to tell the caller with that context, which must still exist. SERVICE_UNKNOWN as
  // Find.
  Status FindFor(const grpc::CallbackServerContext& context, const std::string& service) const;
  // Answers Check. NOT_FOUND if there is no such service.
  absl::Status Answer(UnaryCall& call, const grpc::ByteBuffer& request) const;
  // Answers List. RESOURCE_EXHAUSTED if there are too many services, or no memory;
  // INVALID_ARGUMENT if the request is too long, or could never fit.
  absl::Status AnswerList(UnaryCall& call, const grpc::ByteBuffer& request) const;

  const TransportEnvironment environment_;
  mutable Mutex mutex_;
  std::map<std::string, Status> services_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server
