#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/registry/model_registry.h"
#include "server/rpc/active_calls.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace aft::server {

class HealthService;
class InferenceService;
class ModelService;

// Sends what gRPC and protobuf log into the server's own log, at level debug: every fault that
// matters reaches a caller as a status, and much of what gRPC calls an error is a client that left.
// Ten lines a second; the next one says how many were left out.
// Affects the process; call before the first use of gRPC.
void RouteLibraryLogs();

// The listening gRPC server with all of its services: aft.v1, health, reflection.
class GrpcServer {
 public:
  // Binds config.listen_address and answers from then on. `registry` and `metrics` must outlive it.
  // UNAVAILABLE, naming address and reason, when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const ServerConfig& config,
                                                            ModelRegistry& registry,
                                                            ServerMetrics& metrics);
  ~GrpcServer();  // cancels what still runs

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }

  // Health of the server ("" and each service) and of models, each of which is the service
  // "aft.v1.InferenceService/MODEL".
  void SetServing(bool serving, const std::map<std::string, bool>& models);

  // Ends health watches, waits for the streams until `deadline`, cancels what is left and closes
  // the port. Returns when every call has ended.
  void Shutdown(TimePoint deadline);

 private:
  GrpcServer(const ServerConfig& config, ModelRegistry& registry, ServerMetrics& metrics);

  absl::Status Listen(const ServerConfig& config);

  ActiveCalls active_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<ModelService> models_;
  std::unique_ptr<HealthService> health_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // last: goes before the services
};

}  // namespace aft::server
