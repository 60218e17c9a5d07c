#include "server/app/grpc_server.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "server/admission/memory_ledger.h"
#include "server/admission/tls_context.h"
#include "server/api/aft/inference_service.h"
#include "server/api/aft/model_service.h"
#include "server/api/aft/option_rules.h"
#include "server/api/aft/state_service.h"
#include "server/api/oip/oip_service.h"
#include "server/call/decode_pool.h"
#include "server/config/memory_plan.h"
#include "server/states/state_access.h"
#include "server/transport/bind_error.h"
#include "server/transport/client_identity.h"
#include "server/transport/health_service.h"
#include "server/transport/reflection_service.h"
#include "server/transport/server_credentials.h"

namespace aft::server {
namespace {

// Names under which health is asked for.
constexpr const char* kServices[] = {"",
                                     "aft.v1.InferenceService",
                                     "aft.v1.ModelService",
                                     "aft.v1.StateService",
                                     "grpc.health.v1.Health",
                                     "inference.GRPCInferenceService"};

constexpr int kRefusalLinesPerSecond = 20;

// Clients have this time to close their connections.
constexpr std::chrono::milliseconds kLastCalls{1'000};

Duration LeftUntil(TimePoint deadline) {
  const TimePoint now = std::chrono::steady_clock::now();
  return deadline > now ? deadline - now : Duration(0);
}

std::unique_ptr<MemoryLedger> MakeLedger(const LimitsConfig& limits, ServerMetrics& metrics) {
  const int64_t total = ClientMemory(limits);
  const int64_t per_client =
      limits.max_client_memory_bytes != 0 ? limits.max_client_memory_bytes : total / 2;
  return std::make_unique<MemoryLedger>(total, per_client, metrics);
}

// How many streams a client may have open, of `most` in all. `configured`: 0 means half.
int64_t OpenStreamsOfClient(int32_t configured, int32_t most) {
  return configured != 0 ? configured : std::max(most / 2, 1);
}

// gRPC has buffers that the ledger does not know, for incomplete messages and for writes. Beyond
// its quota gRPC cancels calls of any client, so the quota is the last resort. The request streams,
// whose messages the edge cannot hold back, stay below it.
void SetQuota(grpc::ServerBuilder& builder, const LimitsConfig& limits) {
  grpc::ResourceQuota quota("aft-server");
  quota.Resize(static_cast<size_t>(GrpcMemory(limits)));
  builder.SetResourceQuota(quota);
}

std::vector<std::string> ClientLabels(const ClientDirectory* directory, int32_t most) {
  std::vector<std::string> names;
  if (directory != nullptr) names = directory->Names();
  names.resize(std::min(names.size(), static_cast<size_t>(most)));
  return names;
}

void SetChannelArguments(grpc::ServerBuilder& builder, const ServerConfig& config) {
  const LimitsConfig& limits = config.limits;
  // Two servers must not share a port silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // A peer that is gone frees its slots within 40 seconds.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // during long waits too
  // Clients may ping, also while they wait for a slot.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // messages are tiny
  // gRPC's own defaults are "never" and "as long as they like".
  if (const auto age = config.connections.max_age.count(); age > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, static_cast<int>(age));
  }
  if (const auto grace = config.connections.max_age_grace.count(); grace > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(grace));
  }
  // gRPC has one limit for all methods, so this is the larger one; calls check the smaller one.
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::max(limits.max_message_bytes, TensorMessageBytes(limits))));
  // A compressed message would be inflated before its size is looked at.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

}  // namespace

void QuietLibraries() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
#if GOOGLE_PROTOBUF_VERSION < 4022000  // later ones log by Abseil
  google::protobuf::SetLogHandler(nullptr);
#endif
}

GrpcServer::GrpcServer(const ServerConfig& config, std::unique_ptr<ClientIdentity> identity,
                       std::unique_ptr<StateAccess> states, std::unique_ptr<DecodePool> decoders,
                       ModelRegistry& registry, ServerMetrics& metrics,
                       prometheus::Registry& prometheus)
    : identity_(std::move(identity)),
      ledger_(MakeLedger(config.limits, metrics)),
      client_metrics_(prometheus,
                      ClientLabels(identity_->directory(), config.security.max_client_labels)),
      active_(config.limits.write_stall, metrics),
      watches_("watches", config.limits.max_watches,
               OpenStreamsOfClient(config.limits.max_client_watches, config.limits.max_watches),
               metrics.watches),
      infer_streams_(
          "infer_streams", InferStreams(config.limits),
          OpenStreamsOfClient(config.limits.max_client_infer_streams, InferStreams(config.limits)),
          metrics.infer_streams),
      refusal_lines_(kRefusalLinesPerSecond),
      state_access_(std::move(states)),
      decoders_(std::move(decoders)),
      transport_{{metrics, *ledger_, refusal_lines_, config.limits},
                 active_,
                 sender_,
                 *identity_,
                 watches_,
                 infer_streams_},
      calls_{{metrics, *ledger_, refusal_lines_, config.limits},
             registry,
             *decoders_,
             client_metrics_,
             *state_access_} {
  models_ = std::make_unique<ModelService>(transport_, registry);
  inference_ = std::make_unique<InferenceService>(transport_, calls_);
  states_ = std::make_unique<StateService>(
      StateEnvironment{transport_, *state_access_, registry, *decoders_});
  health_ = std::make_unique<HealthService>(transport_);
  oip_ = std::make_unique<oip::OipService>(transport_, calls_, registry, *health_);
  if (config.security.reflection) {
    const std::vector<std::string> names(std::begin(kServices) + 1, std::end(kServices));
    for (const int version : {0, 1}) {
      reflection_.push_back(MakeReflectionService(version, transport_, names));
    }
  }
  OnClients(nullptr);
  std::map<std::string, bool> none;
  for (const ModelStatus& model : registry.List()) none[model.name] = false;
  SetServing(false, none, /*alive=*/true);
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const ServerConfig& config,
                                                               ModelRegistry& registry,
                                                               ServerMetrics& metrics,
                                                               prometheus::Registry& prometheus) {
  // Makes the rules while there is memory, because the error of a call without memory needs them.
  OptionRules();
  AFT_ASSIGN_OR_RETURN(auto identity, ClientIdentity::Create(config.security));
  auto decoders = std::make_unique<DecodePool>();
  // Only lookups under way call this. Each belongs to a call or to a stored response over HTTP, and
  // these end before the pool goes.
  const auto decode = [pool = decoders.get()](const Client& client, size_t bytes,
                                              std::function<void()> task) {
    pool->Add(client, bytes, std::move(task));
  };
  AFT_ASSIGN_OR_RETURN(
      auto states,
      StateAccess::Create(config.states, identity->directory() != nullptr, metrics.states, decode));
  std::unique_ptr<GrpcServer> server(new GrpcServer(config, std::move(identity), std::move(states),
                                                    std::move(decoders), registry, metrics,
                                                    prometheus));
  AFT_RETURN_IF_ERROR(server->Listen(config));
  return server;
}

absl::Status GrpcServer::Listen(const ServerConfig& config) {
  if (!config.security.tls.cert_file.empty()) {
    AFT_ASSIGN_OR_RETURN(tls_files_, TlsFiles::Load(config.security));
  }
  grpc::ServerBuilder builder;
  SetChannelArguments(builder, config);
  SetQuota(builder, config.limits);
  builder.RegisterService(inference_.get());
  builder.RegisterService(models_.get());
  builder.RegisterService(states_.get());
  builder.RegisterService(health_.get());
  builder.RegisterService(oip_.get());
  for (const auto& service : reflection_) builder.RegisterService(service.get());
  int port = 0;
  builder.AddListeningPort(config.listen_address, MakeServerCredentials(tls_files_.get()), &port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("listen_address: cannot listen on ", config.listen_address, ": ",
                     ExplainBindError(config.listen_address),
                     "; choose another address with --listen_address HOST:PORT"));
  }
  const absl::string_view configured = config.listen_address;
  address_ = absl::StrCat(configured.substr(0, configured.rfind(':')), ":", port);
  // Made now, because the system may have no more threads when the drain begins.
  AFT_RETURN_IF_ERROR(Catching([&] {
    drain_ = std::async(std::launch::async,
                        [server = server.get(), until = drain_until_.get_future()]() mutable {
                          pthread_setname_np(pthread_self(), "aft-drain");
                          server->Shutdown(until.get());
                        });
    return absl::OkStatus();
  }));
  server_ = std::move(server);
  connections_.Keep(port);
  return absl::OkStatus();
}

GrpcServer::~GrpcServer() {
  identity_->OnChange(nullptr);
  Shutdown(TimePoint::min());
}

void GrpcServer::SetServing(bool serving, const std::map<std::string, bool>& models, bool alive) {
  std::map<std::string, bool> services = {{"liveness", alive}};
  for (const char* service : kServices) services[service] = serving;
  for (const auto& [model, model_serving] : models) {
    services[absl::StrCat(kHealthOfModel, model)] = model_serving;
  }
  health_->SetServing(services);
}

void GrpcServer::RefreshFiles() {
  identity_->Refresh();
  if (tls_files_ != nullptr) tls_files_->Refresh();
}

void GrpcServer::OnClients(std::function<void()> on_clients) {
  identity_->OnChange([this, on_clients = std::move(on_clients)] {
    active_.CheckClients(*identity_);
    health_->LookAgain();
    if (on_clients != nullptr) on_clients();
  });
}

void GrpcServer::BeginDrain(TimePoint deadline) {
  if (std::exchange(draining_, true)) return;
  watches_.EndAll();
  infer_streams_.EndAll();
  // Shutdown ends the calls at the deadline, with a status that says why. gRPC cancels them later.
  drain_until_.set_value(std::chrono::system_clock::now() + LeftUntil(deadline) + kLastCalls);
}

void GrpcServer::Shutdown(TimePoint deadline) {
  if (server_ == nullptr) return;
  BeginDrain(deadline);
  active_.WaitForNone(deadline);
  // The first reason of an end counts. Without this one, the cancellation below would look as if
  // the clients had cancelled.
  active_.EndAll(absl::UnavailableError("the server is shutting down"));
  // A client closes a connection that got GOAWAY when it has read the last of its streams.
  std::future_status drained = drain_.wait_for(kLastCalls);
  // gRPC's shutdown would otherwise wait until its deadline for connections without a call. This is
  // repeated, because a call may still be arriving.
  while (drained != std::future_status::ready) {
    grpc_server_cancel_all_calls(server_->c_server());
    drained = drain_.wait_for(std::chrono::milliseconds(10));
  }
  server_.reset();
  const TimePoint now = std::chrono::steady_clock::now();
  connections_.Release(now + kLastCalls, now + std::max<Duration>(LeftUntil(deadline), kLastCalls));
}

}  // namespace aft::server
