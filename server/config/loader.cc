#include "server/config/loader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/strip.h"
#include "aft/config/v1/server_config.pb.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "server/config/fields.h"
#include "server/config/text_proto.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;

// Converts a value to the type of its field. A number out of its range becomes the nearest one in
// it.
template <typename Field, typename Value>
Field ToField(const Value& value) {
  return Field(value);
}
template <typename Field>
Field ToField(int64_t value) {
  using Limits = std::numeric_limits<Field>;
  return static_cast<Field>(std::clamp<int64_t>(value, Limits::min(), Limits::max()));
}
template <typename Field, typename Period>
Field ToField(std::chrono::duration<int64_t, Period> value) {
  return ToField<Field>(value.count());
}

// Connects a value of the config with its field in the file. The same list of fields serves for
// reading and for writing. When reading, an absent field leaves the default.
#define AFT_FIELD(value, message, field)                                              \
  if constexpr (kRead) {                                                              \
    if ((message).has_##field()) (value) = decltype(value)((message).field());        \
  } else {                                                                            \
    (message).set_##field(ToField<std::decay_t<decltype((message).field())>>(value)); \
  }

// Does the same as AFT_FIELD for a list. The default is the empty list.
#define AFT_LIST(value, message, field)                                 \
  if constexpr (kRead) {                                                \
    (value).assign((message).field().begin(), (message).field().end()); \
  } else {                                                              \
    *(message).mutable_##field() = {(value).begin(), (value).end()};    \
  }

template <bool kRead>
void Exchange(ChatFormat& format, pb::ChatFormat& message) {
  AFT_FIELD(format.system_prefix, message, system_prefix);
  AFT_FIELD(format.system_suffix, message, system_suffix);
  AFT_FIELD(format.user_prefix, message, user_prefix);
  AFT_FIELD(format.user_suffix, message, user_suffix);
  AFT_FIELD(format.assistant_prefix, message, assistant_prefix);
  AFT_FIELD(format.assistant_suffix, message, assistant_suffix);
  AFT_FIELD(format.answer, message, answer);
  AFT_LIST(format.stop, message, stop);
}

template <bool kRead>
void Exchange(ModelConfig& model, pb::ModelConfig& message) {
  AFT_FIELD(model.name, message, name);
  AFT_FIELD(model.checkpoint_dir, message, path);
  AFT_FIELD(model.device, message, device);
  AFT_FIELD(model.weight_format, message, weight_format);
  AFT_FIELD(model.slots, message, slots);
  AFT_FIELD(model.max_step_tokens, message, max_step_tokens);
  AFT_FIELD(model.intra_op_threads, message, intra_op_threads);
  AFT_FIELD(model.measure_threads, message, measure_threads);
  AFT_FIELD(model.version, message, version);
  pb::BatchConfig& batch = *message.mutable_batch();
  AFT_FIELD(model.max_batch_delay, batch, max_delay_us);
  AFT_FIELD(model.max_batch_rows, batch, max_rows);
  AFT_FIELD(model.max_batch_tokens, batch, max_tokens);
  AFT_FIELD(model.parking_bytes, message, parking_bytes);
  AFT_FIELD(model.cpus, message, cpus);
  AFT_FIELD(model.prefix_cache_bytes, message, prefix_cache_bytes);
  AFT_FIELD(model.prefix_cache_interval_tokens, message, prefix_cache_interval_tokens);
  AFT_FIELD(model.chat_template, message, chat_template);
  Exchange<kRead>(model.chat_format, *message.mutable_chat_format());
}

template <bool kRead>
void Exchange(LimitsConfig& limits, pb::LimitsConfig& message) {
  AFT_FIELD(limits.max_message_bytes, message, max_message_bytes);
  AFT_FIELD(limits.max_tensor_message_bytes, message, max_tensor_message_bytes);
  AFT_FIELD(limits.max_memory_bytes, message, max_memory_bytes);
  AFT_FIELD(limits.max_client_memory_bytes, message, max_client_memory_bytes);
  AFT_FIELD(limits.write_stall, message, write_stall_ms);
  AFT_FIELD(limits.max_request, message, max_request_ms);
  AFT_FIELD(limits.max_queued_requests, message, max_queued_requests);
  AFT_FIELD(limits.max_queued_tokens, message, max_queued_tokens);
  AFT_FIELD(limits.max_prompt_bytes, message, max_prompt_bytes);
  AFT_FIELD(limits.max_prompt_tokens, message, max_prompt_tokens);
  AFT_FIELD(limits.max_texts, message, max_texts);
  AFT_FIELD(limits.default_max_tokens, message, default_max_tokens);
  AFT_FIELD(limits.max_max_tokens, message, max_max_tokens);
  AFT_FIELD(limits.max_stream_buffer_bytes, message, max_stream_buffer_bytes);
  AFT_FIELD(limits.max_concurrent_streams, message, max_concurrent_streams);
  AFT_FIELD(limits.max_watches, message, max_watches);
  AFT_FIELD(limits.max_client_watches, message, max_client_watches);
  AFT_FIELD(limits.max_infer_streams, message, max_infer_streams);
  AFT_FIELD(limits.max_client_infer_streams, message, max_client_infer_streams);
}

template <bool kRead>
void Exchange(TlsConfig& tls, pb::TlsConfig& message) {
  AFT_FIELD(tls.cert_file, message, cert_file);
  AFT_FIELD(tls.key_file, message, key_file);
  AFT_FIELD(tls.client_ca_file, message, client_ca_file);
}

template <bool kRead>
void Exchange(SecurityConfig& security, pb::SecurityConfig& message) {
  Exchange<kRead>(security.tls, *message.mutable_tls());
  AFT_FIELD(security.clients_file, message, clients_file);
  AFT_LIST(security.trusted_proxies, message, trusted_proxies);
  AFT_FIELD(security.reload, message, reload_s);
  AFT_FIELD(security.reflection, message, reflection);
  AFT_FIELD(security.max_client_labels, message, max_client_labels);
}

template <bool kRead>
void Exchange(SchedulingConfig& scheduling, pb::SchedulingConfig& message) {
  AFT_FIELD(scheduling.age, message, age_ms);
  AFT_FIELD(scheduling.max_client_slots, message, max_client_slots);
  AFT_FIELD(scheduling.reserved_slots, message, reserved_slots);
  AFT_FIELD(scheduling.strict_quotas, message, strict_quotas);
  AFT_FIELD(scheduling.max_client_queued_requests, message, max_client_queued_requests);
  AFT_FIELD(scheduling.max_queue, message, max_queue_ms);
  AFT_FIELD(scheduling.step_target, message, step_target_ms);
  AFT_FIELD(scheduling.itl_target, message, itl_target_ms);
}

template <bool kRead>
void Exchange(RedisConfig& redis, pb::RedisConfig& message) {
  AFT_FIELD(redis.address, message, address);
  AFT_FIELD(redis.password_file, message, password_file);
  AFT_FIELD(redis.database, message, database);
  AFT_FIELD(redis.prefix, message, prefix);
  AFT_FIELD(redis.timeout, message, timeout_ms);
  AFT_FIELD(redis.max_client_bytes, message, max_client_bytes);
}

template <bool kRead>
void Exchange(StatesConfig& states, pb::StatesConfig& message) {
  AFT_FIELD(states.max_bytes, message, max_bytes);
  AFT_FIELD(states.max_client_bytes, message, max_client_bytes);
  AFT_FIELD(states.default_ttl, message, default_ttl_ms);
  AFT_FIELD(states.max_ttl, message, max_ttl_ms);
  AFT_LIST(states.key_files, message, key_files);
  AFT_FIELD(states.folder, message, folder);
  Exchange<kRead>(states.redis, *message.mutable_redis());
  AFT_FIELD(states.checkpoint_tokens, message, checkpoint_tokens);
}

template <bool kRead>
void Exchange(RepositoryConfig& repository, pb::RepositoryConfig& message) {
  AFT_FIELD(repository.folder, message, folder);
  AFT_FIELD(repository.latest_versions, message, latest_versions);
  AFT_LIST(repository.versions, message, versions);
  AFT_FIELD(repository.control, message, control);
  AFT_FIELD(repository.drain, message, drain_ms);
  Exchange<kRead>(repository.settings, *message.mutable_settings());
}

template <bool kRead>
void Exchange(DrainConfig& drain, pb::DrainConfig& message) {
  AFT_FIELD(drain.lame_duck, message, lame_duck_ms);
  AFT_FIELD(drain.grace, message, grace_ms);
}

template <bool kRead>
void Exchange(LogConfig& log, pb::LogConfig& message) {
  AFT_FIELD(log.level, message, level);
  AFT_FIELD(log.format, message, format);
}

template <bool kRead>
void Exchange(HealthConfig& health, pb::HealthConfig& message) {
  AFT_FIELD(health.readiness, message, readiness);
  AFT_FIELD(health.max_failed_steps, message, max_failed_steps);
  AFT_FIELD(health.step_timeout, message, step_timeout_ms);
  AFT_FIELD(health.liveness_grace, message, liveness_grace_ms);
}

template <bool kRead>
void Exchange(ConnectionConfig& connections, pb::ConnectionConfig& message) {
  AFT_FIELD(connections.max_age, message, max_age_ms);
  AFT_FIELD(connections.max_age_grace, message, max_age_grace_ms);
}

template <bool kRead>
void Exchange(HttpConfig& http, pb::HttpConfig& message) {
  AFT_LIST(http.allow_origins, message, allow_origins);
  AFT_LIST(http.allowed_hosts, message, allowed_hosts);
  AFT_FIELD(http.max_connections, message, max_connections);
}

// Exchanges everything except the models.
template <bool kRead>
void Exchange(ServerConfig& config, pb::ServerConfig& message) {
  AFT_FIELD(config.listen_address, message, listen_address);
  AFT_FIELD(config.metrics_address, message, metrics_address);
  AFT_FIELD(config.http_address, message, http_address);
  Exchange<kRead>(config.http, *message.mutable_http());
  Exchange<kRead>(config.limits, *message.mutable_limits());
  Exchange<kRead>(config.scheduling, *message.mutable_scheduling());
  Exchange<kRead>(config.drain, *message.mutable_drain());
  Exchange<kRead>(config.log, *message.mutable_log());
  Exchange<kRead>(config.security, *message.mutable_security());
  Exchange<kRead>(config.health, *message.mutable_health());
  Exchange<kRead>(config.connections, *message.mutable_connections());
  Exchange<kRead>(config.states, *message.mutable_states());
  Exchange<kRead>(config.repository, *message.mutable_repository());
}

#undef AFT_FIELD
#undef AFT_LIST

// Sets the defaults of those fields that have one. All members are 0 or empty before.
template <typename Config, typename Message>
void SetDefaults(Config& config) {
  static const Message& defaults = *[] {
    auto* const message = new Message;
    FillDefaults(*message);
    return message;
  }();
  Message message = defaults;
  Exchange<true>(config, message);
}

std::filesystem::path WithoutSlashAtTheEnd(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

#define AFT_DEFAULTS(Config) \
  Config::Config() { SetDefaults<Config, pb::Config>(*this); }
AFT_DEFAULTS(ChatFormat)
AFT_DEFAULTS(ModelConfig)
AFT_DEFAULTS(LimitsConfig)
AFT_DEFAULTS(TlsConfig)
AFT_DEFAULTS(SecurityConfig)
AFT_DEFAULTS(SchedulingConfig)
AFT_DEFAULTS(DrainConfig)
AFT_DEFAULTS(HealthConfig)
AFT_DEFAULTS(ConnectionConfig)
AFT_DEFAULTS(RedisConfig)
AFT_DEFAULTS(StatesConfig)
AFT_DEFAULTS(RepositoryConfig)
AFT_DEFAULTS(HttpConfig)
AFT_DEFAULTS(LogConfig)
AFT_DEFAULTS(ServerConfig)
#undef AFT_DEFAULTS

ModelConfig DefaultModelConfig(const std::string& dir) {
  const std::filesystem::path path = WithoutSlashAtTheEnd(dir);
  ModelConfig model;
  model.checkpoint_dir = path.string();  // not normalized: "link/.." is not the folder of the link
  std::error_code failed;                // the name is then empty, which validation refuses
  const std::filesystem::path normal = std::filesystem::absolute(path, failed).lexically_normal();
  model.name = WithoutSlashAtTheEnd(normal).filename().string();
  return model;
}

absl::StatusOr<ServerConfig> ParseServerConfig(absl::string_view text, absl::string_view file_name,
                                               const std::string& base_dir) {
  pb::ServerConfig message;
  AFT_RETURN_IF_ERROR(ParseTextProto(text, file_name, message));
  ResolveFiles(base_dir, message);
  ServerConfig config;
  Exchange<true>(config, message);
  std::string& redis = config.states.redis.address;
  if (absl::string_view path = redis; absl::ConsumePrefix(&path, "unix:") && !path.empty()) {
    redis = "unix:" + (std::filesystem::path(base_dir) / std::string(path)).string();
  }
  for (pb::ModelConfig& model : *message.mutable_models()) {
    config.models.push_back(model.path().empty() ? ModelConfig()
                                                 : DefaultModelConfig(model.path()));
    model.clear_path();
    if (model.name().empty()) model.clear_name();
    Exchange<true>(config.models.back(), model);
  }
  return config;
}

absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  // Absolute, so that a printed config means the same files wherever it is kept.
  std::error_code failed;
  std::filesystem::path file = std::filesystem::absolute(path, failed);
  if (failed) file = path;  // the working directory is gone
  return ParseServerConfig(text, path, file.parent_path().string());
}

pb::ServerConfig MessageOf(ServerConfig config) {
  pb::ServerConfig message;
  Exchange<false>(config, message);
  for (ModelConfig& model : config.models) Exchange<false>(model, *message.add_models());
  return message;
}

std::string FormatEffectiveConfig(const ServerConfig& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(MessageOf(config), &text);
  return text;
}

std::string FormatChangedConfig(const ServerConfig& config) {
  pb::ServerConfig message = MessageOf(config);
  ClearDefaults(message);
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace aft::server
