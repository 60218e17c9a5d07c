#include "client/aftload/load.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "client/aftload/load_run.h"
#include "client/aftload/reference.h"
#include "client/aftload/transport.h"
#include "client/lib/aft_client.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;

// Keeps warm-up requests different from the measured ones, also from those of other runs.
constexpr uint64_t kFirstWarmup = kRunStride / 2;
constexpr uint32_t kWarmupStreams = 16;

absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options, bool resume,
                                                CancelToken& cancel) {
  // The client must not retry, because refusals are counted here, one by one.
  options.max_attempts = 1;
  if (!resume) options.max_resumes = 0;
  options.connect_timeout = milliseconds(1000);
  options.channel_args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 400);
  // Without this, channels to one address share a connection.
  options.channel_args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(std::move(options)));
  AFT_RETURN_IF_ERROR(
      client->ListModels({.deadline = milliseconds(10'000), .cancel = &cancel}).status());
  // Connecting is no part of a measured request. A server that does not serve yet is still
  // measured.
  client->WaitForServer(milliseconds(10'000));
  return client;
}

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(Client& client) : client_(client) {}

  void StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                     const CallOptions& call) override {
    AFT_CHECK(client_.StartGenerate(request, listener, call).ok());
  }
  void KeepConnected() override { client_.WaitForServer(milliseconds(10)); }

 private:
  Client& client_;
};

}  // namespace

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel,
                                   const std::function<void(const Progress&)>& on_progress) {
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<Transport>> transports;  // connections to the targets in turn
  for (uint32_t i = 0; i < options.connections; ++i) {
    for (const ClientOptions& target : options.targets) {
      if (options.http) {
        AFT_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, ConnectHttp(target));
        transports.push_back(std::move(transport));
        continue;
      }
      AFT_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Connect(target, options.resume, cancel));
      transports.push_back(std::make_unique<GrpcTransport>(*client));
      clients.push_back(std::move(client));
    }
  }
  const Workload workload(options.workload);
  AFT_ASSIGN_OR_RETURN(const std::vector<Reference> references,
                       TakeReferences(workload, options.verify, options.streams, clients, cancel));
  if (options.warmup > 0) {
    LoadOptions warmup = options;
    warmup.arrivals.rate = 0;
    warmup.arrivals.requests = options.warmup;
    warmup.arrivals.duration = std::chrono::hours(24);  // --duration limits only the measurement
    // The streams of an open loop are only a limit. All of them at once may overload the server.
    if (options.arrivals.rate > 0) warmup.streams = std::min(options.streams, kWarmupStreams);
    LoadRun(warmup, workload, options.first_index + kFirstWarmup, {}, transports, cancel).Run({});
  }
  return LoadRun(options, workload, options.first_index, references, transports, cancel)
      .Run(on_progress);
}

}  // namespace aft::client
