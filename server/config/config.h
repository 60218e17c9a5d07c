#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "model/api/load.h"

// The server's configuration as plain values. proto/aft/config/v1/server_config.proto gives their
// meaning, defaults and ranges. The constructors, in loader.cc, set the defaults.
namespace aft::server {

struct ChatFormat {
  ChatFormat();
  bool operator==(const ChatFormat& other) const = default;

  std::string system_prefix, system_suffix;
  std::string user_prefix, user_suffix;
  std::string assistant_prefix, assistant_suffix;
  std::string answer;
  std::vector<std::string> stop;
};

// How a model is loaded, and how it is served.
struct ModelConfig : LoadOptions {
  ModelConfig();
  bool operator==(const ModelConfig& other) const = default;

  std::string name;
  std::string version;
  std::chrono::microseconds max_batch_delay{};  // encoders and bare mixers only
  int64_t parking_bytes{};                      // language models only
  int64_t prefix_cache_interval_tokens{};       // language models only; 0: no regular distance
  std::string chat_template;                    // language models only
  ChatFormat chat_format;                       // language models only
};

struct LimitsConfig {
  LimitsConfig();
  int64_t max_message_bytes{};
  int64_t max_tensor_message_bytes{};  // 0: TensorMessageBytes (memory_plan.h)
  int64_t max_memory_bytes{};          // of the process; 0: a quarter of the available memory
  int64_t max_client_memory_bytes{};   // 0: half of max_memory_bytes
  int32_t max_queued_requests{};       // per model
  int64_t max_queued_tokens{};         // per model
  int64_t max_prompt_bytes{};
  int64_t max_prompt_tokens{};
  int32_t max_texts{};  // per call
  int32_t default_max_tokens{};
  int32_t max_max_tokens{};
  int64_t max_stream_buffer_bytes{};   // per stream
  int32_t max_concurrent_streams{};    // per connection
  int32_t max_watches{};               // of health and reflection
  int32_t max_client_watches{};        // 0: half of max_watches
  int32_t max_infer_streams{};         // 0: InferStreams (memory_plan.h)
  int32_t max_client_infer_streams{};  // 0: half of max_infer_streams
  std::chrono::milliseconds write_stall{};
  std::chrono::milliseconds max_request{};
};

struct TlsConfig {
  TlsConfig();
  std::string cert_file;  // PEM; empty: no TLS
  std::string key_file;
  std::string client_ca_file;  // empty: clients need no certificate
};

struct SecurityConfig {
  SecurityConfig();
  TlsConfig tls;
  std::string clients_file;  // empty: every caller is allowed, known by its address
  std::vector<std::string> trusted_proxies;
  std::chrono::seconds reload{};
  bool reflection{};
  int32_t max_client_labels{};
};

// Applies to every model.
struct SchedulingConfig {
  SchedulingConfig();
  std::chrono::milliseconds age{};
  int32_t max_client_slots{};  // 0: half of the slots
  int32_t reserved_slots{};    // 0: a sixteenth of the slots; -1: none
  bool strict_quotas{};
  int32_t max_client_queued_requests{};     // 0: half of LimitsConfig::max_queued_requests
  std::chrono::milliseconds max_queue{};    // 0: no limit
  std::chrono::milliseconds step_target{};  // 0: no target
  std::chrono::milliseconds itl_target{};   // clients share longer steps
};

struct DrainConfig {
  DrainConfig();
  std::chrono::milliseconds lame_duck{};
  std::chrono::milliseconds grace{};
};

struct HealthConfig {
  HealthConfig();
  std::string readiness;
  int32_t max_failed_steps{};
  std::chrono::milliseconds step_timeout{};
  std::chrono::milliseconds liveness_grace{};
};

struct ConnectionConfig {
  ConnectionConfig();
  std::chrono::milliseconds max_age{};        // 0: unlimited
  std::chrono::milliseconds max_age_grace{};  // 0: unlimited
};

struct RedisConfig {
  RedisConfig();
  // "HOST:PORT" or "unix:PATH"; "": states are not stored in Redis. REQUIRES, before connecting:
  // ValidateServerConfig has accepted it.
  std::string address;
  std::string password_file;  // "": no password
  int32_t database{};
  std::string prefix;
  std::chrono::milliseconds timeout{};
  int64_t max_client_bytes{};
};

struct StatesConfig {
  StatesConfig();
  int64_t max_bytes{};         // 0: no state is kept
  int64_t max_client_bytes{};  // 0: half of max_bytes
  std::chrono::milliseconds default_ttl{};
  std::chrono::milliseconds max_ttl{};
  std::vector<std::string> key_files;  // empty: a key of this process only
  std::string folder;                  // "": in memory only
  RedisConfig redis;
  int64_t checkpoint_tokens{};  // 0: running streams leave no resume points
};

struct RepositoryConfig {
  RepositoryConfig();
  std::string folder;         // "": no repository
  int32_t latest_versions{};  // 0: all
  std::vector<int64_t> versions;
  std::string control;
  std::chrono::milliseconds drain{};
  ModelConfig settings;  // for all its models
};

struct HttpConfig {
  HttpConfig();
  std::vector<std::string> allow_origins;
  std::vector<std::string> allowed_hosts;
  int32_t max_connections{};
};

struct LogConfig {
  LogConfig();
  std::string level;
  std::string format;
};

struct ServerConfig {
  ServerConfig();
  std::string listen_address;
  std::string metrics_address;  // empty: no metrics page
  std::string http_address;     // empty: no HTTP API
  HttpConfig http;
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

}  // namespace aft::server
