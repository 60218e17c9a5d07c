#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/impl/service_type.h"
#include "server/admission/open_streams.h"
#include "server/call/call.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/registry/model_registry.h"
#include "server/transport/active_calls.h"
#include "server/transport/lingering_connections.h"
#include "server/transport/transport_environment.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace aft::server {
namespace oip {
class OipService;
}  // namespace oip

class HealthService;
class ClientIdentity;
class DecodePool;
class InferenceService;
class MemoryLedger;
class ModelService;
class StateAccess;
class StateService;
class TlsFiles;

// Turns off the logs of gRPC and protobuf, because stderr is for the server's own log. Every fault
// that matters reaches a caller as a status, and clients decide how often the others occur. The
// environment variable GRPC_VERBOSITY turns gRPC's log on again. Affects the whole process. Must be
// called before the first use of gRPC, while there is one thread.
void QuietLibraries();

// The listening gRPC server with all of its services: aft.v1, inference, health, reflection. It
// owns the parts that a call passes before it reaches an engine: the identity of clients, the
// memory ledger, the stored states and the decode pool. HTTP uses them too.
class GrpcServer {
 public:
  // Binds config.listen_address and answers from then on. `registry` and `metrics` must outlive
  // this object. UNAVAILABLE names the address and the reason if it cannot listen there;
  // INVALID_ARGUMENT or NOT_FOUND for files of config.security and config.states that cannot be
  // used.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const ServerConfig& config,
                                                            ModelRegistry& registry,
                                                            ServerMetrics& metrics,
                                                            prometheus::Registry& prometheus);
  ~GrpcServer();  // cancels what still runs

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }

  // Sets the health of the server ("" and each service), of each model (the service
  // "aft.v1.InferenceService/MODEL"), and of the process ("liveness"; false asks for a restart).
  void SetServing(bool serving, const std::map<std::string, bool>& models, bool alive);

  // Reads the file of clients and those of TLS again.
  void RefreshFiles();

  // Other transports use these to serve models. `on_clients` is called when the file of clients has
  // changed.
  InferenceEnvironment& calls() { return calls_; }
  const ClientIdentity& identity() const { return *identity_; }
  const TlsFiles* tls_files() const { return tls_files_.get(); }  // null: plaintext
  void OnClients(std::function<void()> on_clients);

  // Closes the port, ends idle streams and tells every client to use another server (GOAWAY). Calls
  // that have begun continue until `deadline`, when Shutdown ends them. Returns at once.
  void BeginDrain(TimePoint deadline);

  // Calls BeginDrain unless it was called before. Returns when every call has ended.
  void Shutdown(TimePoint deadline);

 private:
  GrpcServer(const ServerConfig& config, std::unique_ptr<ClientIdentity> identity,
             std::unique_ptr<StateAccess> states, std::unique_ptr<DecodePool> decoders,
             ModelRegistry& registry, ServerMetrics& metrics, prometheus::Registry& prometheus);

  absl::Status Listen(const ServerConfig& config);

  const std::unique_ptr<ClientIdentity> identity_;
  std::unique_ptr<TlsFiles> tls_files_;
  std::unique_ptr<MemoryLedger> ledger_;
  ClientMetrics client_metrics_;
  ActiveCalls active_;
  OpenStreams watches_;
  OpenStreams infer_streams_;
  RateLimit refusal_lines_;
  std::unique_ptr<StateAccess> state_access_;
  std::unique_ptr<DecodePool> decoders_;
  Sender sender_;
  TransportEnvironment transport_;
  InferenceEnvironment calls_;
  std::unique_ptr<ModelService> models_;
  std::unique_ptr<StateService> states_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<oip::OipService> oip_;
  std::vector<std::unique_ptr<grpc::Service>> reflection_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // after the services: it is destroyed before them
  LingeringConnections connections_;      // of the port
  std::promise<std::chrono::system_clock::time_point> drain_until_;  // set when a drain begins
  bool draining_ = false;
  std::future<void> drain_;  // gRPC's shutdown, on a thread that exists from Listen on
};

}  // namespace aft::server
