#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/api/load.h"

// The server's configuration as plain values, and the only place of its defaults (those of loading
// a model come with LoadOptions). Their meaning and range stand in
// proto/aft/config/v1/server_config.proto.
namespace aft::server {

// How a model is loaded, and how it is served.
struct ModelConfig : LoadOptions {
  bool operator==(const ModelConfig& other) const = default;

  std::string name;
  std::string version = "1";
  std::chrono::microseconds max_batch_delay{2'000};  // encoders only
  int64_t parking_bytes = 67'108'864;                // language models only
  int64_t prefix_cache_interval_tokens = 4096;       // likewise; 0: none
};

struct LimitsConfig {
  int64_t max_message_bytes = 4'194'304;
  int64_t max_memory_bytes = 0;           // of the process; 0: a quarter of what it may have
  int64_t max_client_memory_bytes = 0;    // 0: half of max_memory_bytes
  int32_t max_queued_requests = 256;      // per model
  int64_t max_queued_tokens = 4'194'304;  // per model
  int64_t max_prompt_bytes = 1'048'576;
  int64_t max_prompt_tokens = 1'048'576;
  int32_t max_texts = 128;  // per call
  int32_t default_max_tokens = 256;
  int32_t max_max_tokens = 1'048'576;
  int64_t max_stream_buffer_bytes = 1'048'576;  // per stream
  int32_t max_concurrent_streams = 1000;        // per connection
  int32_t max_watches = 1024;                   // of health and reflection
  int32_t max_client_watches = 0;               // 0: half of max_watches
  int32_t max_infer_streams = 0;                // 0: InferStreams (memory_plan.h)
  int32_t max_client_infer_streams = 0;         // 0: half of max_infer_streams
  std::chrono::milliseconds write_stall{10'000};
  std::chrono::milliseconds max_request{3'600'000};
};

struct TlsConfig {
  std::string cert_file;  // PEM; empty: no TLS
  std::string key_file;
  std::string client_ca_file;  // empty: clients need no certificate
};

struct SecurityConfig {
  TlsConfig tls;
  std::string clients_file;  // empty: everybody may call, and is known by the address
  std::vector<std::string> trusted_proxies;
  std::chrono::seconds reload{10};
  bool reflection = true;
  int32_t max_client_labels = 20;
};

// Of every model.
struct SchedulingConfig {
  std::chrono::milliseconds age{5'000};
  int32_t max_client_slots = 0;  // 0: half of the slots
  int32_t reserved_slots = 0;    // 0: a sixteenth of the slots; -1: none
  bool strict_quotas = false;
  int32_t max_client_queued_requests = 0;     // 0: half of LimitsConfig::max_queued_requests
  std::chrono::milliseconds max_queue{0};     // 0: no limit
  std::chrono::milliseconds step_target{20};  // 0: none
  std::chrono::milliseconds itl_target{0};    // clients share longer steps
};

struct DrainConfig {
  std::chrono::milliseconds lame_duck{5'000};
  std::chrono::milliseconds grace{30'000};
};

struct HealthConfig {
  std::string readiness = "all";
  int32_t max_failed_steps = 5;
  std::chrono::milliseconds step_timeout{120'000};
  std::chrono::milliseconds liveness_grace{30'000};
};

struct ConnectionConfig {
  std::chrono::milliseconds max_age{1'800'000};  // 0: unlimited
  std::chrono::milliseconds max_age_grace{0};    // 0: unlimited
};

struct RedisConfig {
  // "HOST:PORT" or "unix:PATH"; "": states do not rest in Redis. REQUIRES, of who connects to it:
  // ValidateServerConfig has passed it.
  std::string address;
  std::string password_file;  // "": none
  int32_t database = 0;
  std::string prefix = "aft:";
  std::chrono::milliseconds timeout{1'000};
  int64_t max_client_bytes = 1'073'741'824;
};

struct StatesConfig {
  int64_t max_bytes = 268'435'456;  // 0: none is kept
  int64_t max_client_bytes = 0;     // 0: half of max_bytes
  std::chrono::milliseconds default_ttl{3'600'000};
  std::chrono::milliseconds max_ttl{86'400'000};
  std::vector<std::string> key_files;  // empty: a key of this process alone
  std::string folder;                  // "": they are in memory only
  RedisConfig redis;
  int64_t checkpoint_tokens = 0;  // 0: none are left under way
};

struct RepositoryConfig {
  std::string folder;           // "": there is none
  int32_t latest_versions = 1;  // 0: all
  std::vector<int64_t> versions;
  std::string control = "none";
  std::chrono::milliseconds drain{30'000};
  ModelConfig settings;  // of its models
};

struct LogConfig {
  std::string level = "info";
  std::string format = "logfmt";
};

struct ServerConfig {
  std::string listen_address = "127.0.0.1:8500";
  std::string metrics_address = "127.0.0.1:8501";  // empty: no metrics page
  std::vector<ModelConfig> models;
  LimitsConfig limits;
  SchedulingConfig scheduling;
  DrainConfig drain;
  LogConfig log;
  SecurityConfig security;
  HealthConfig health;
  ConnectionConfig connections;
  StatesConfig states;
  RepositoryConfig repository;
};

// INVALID_ARGUMENT, starting with the path of the first field that is out of range, e.g.
// "models[0].slots: must be in [1, 65536], got 0".
absl::Status ValidateServerConfig(const ServerConfig& config);

}  // namespace aft::server
