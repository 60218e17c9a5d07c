#include "client/lib/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/strings/substitute.h"
#include "client/lib/address.h"

namespace aft::client {

// CANCELLED is included because gRPC's core returns it if a call meets the GOAWAY of a draining
// server. Two methods of StateService are missing on purpose. When gRPC repeats a stream of
// messages such as Import, messages get lost or the call hangs (seen with gRPC 1.51 and 1.85). A
// Delete whose answer was lost would end with NOT_FOUND.
std::string MakeServiceConfig(const ClientOptions& options) {
  constexpr absl::string_view kRetry = R"(,
    "retryPolicy": {
      "maxAttempts": $0, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"]
    })";
  return absl::Substitute(
      R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "healthCheckConfig": {"serviceName": ""},
  "methodConfig": [{
    "name": [
      {"service": "aft.v1.InferenceService"}, {"service": "aft.v1.ModelService"},
      {"service": "aft.v1.StateService", "method": "Export"},
      {"service": "aft.v1.StateService", "method": "Get"},
      {"service": "aft.v1.StateService", "method": "List"},
      {"service": "inference.GRPCInferenceService", "method": "ModelInfer"},
      {"service": "inference.GRPCInferenceService", "method": "ModelMetadata"},
      {"service": "inference.GRPCInferenceService", "method": "ModelStatistics"},
      {"service": "inference.GRPCInferenceService", "method": "RepositoryIndex"}
    ]$0
  }]
})",
      options.max_attempts > 1 ? absl::Substitute(kRetry, std::min(options.max_attempts, 5)) : "");
}

grpc::ChannelArguments MakeChannelArgs(const ClientOptions& options) {
  grpc::ChannelArguments args = options.channel_args;
  const auto is_set = [&args](const char* key) {
    const grpc_channel_args given = args.c_channel_args();
    return std::any_of(given.args, given.args + given.num_args,
                       [key](const grpc_arg& arg) { return absl::string_view(arg.key) == key; });
  };
  const auto set_default = [&](const char* key, int value) {
    if (!is_set(key)) args.SetInt(key, value);
  };
  // Despite its name, this also limits one attempt to connect.
  set_default(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              static_cast<int>(std::clamp<int64_t>(options.connect_timeout.count(), 100, 600'000)));
  set_default(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A restarted server is back within seconds; until then the other servers take its streams.
  set_default(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The default is 30 s, in which a drained node may replace all servers of a name.
  set_default(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  set_default(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  set_default(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  set_default(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // also during long waits
  // Calls are repeated from this buffer: prompts are larger than gRPC's default of 256 KiB.
  set_default(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, 16 << 20);
  // The answer of Infer can be far larger than gRPC's default of 4 MiB, so there is no limit.
  set_default(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1);
  if (!is_set(GRPC_ARG_SERVICE_CONFIG)) args.SetServiceConfigJSON(MakeServiceConfig(options));
  // A proxy from the environment cannot reach this machine's loopback addresses.
  if (IsLoopback(options.address)) set_default(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return args;
}

std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options, bool watch_health) {
  grpc::ChannelArguments args = MakeChannelArgs(options);
  if (!watch_health) args.SetInt(GRPC_ARG_INHIBIT_HEALTH_CHECKING, 1);
  if (!options.tls) {
    return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), args);
  }
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = options.tls->authorities;
  tls.pem_cert_chain = options.tls->certificate;
  tls.pem_private_key = options.tls->key;
  return grpc::CreateCustomChannel(options.address, grpc::SslCredentials(tls), args);
}

}  // namespace aft::client
