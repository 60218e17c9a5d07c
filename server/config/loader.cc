#include "server/config/loader.h"

#include <chrono>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "aft/config/v1/server_config.pb.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/config/text_proto.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;

template <typename Value>
const Value& ToField(const Value& value) {
  return value;
}
template <typename Period>
int64_t ToField(std::chrono::duration<int64_t, Period> value) {
  return value.count();
}

// A value of the config and its field of the file: one list of both, for reading, where an absent
// field leaves the default, and for writing.
#define AFT_FIELD(value, message, field)                                             \
  if constexpr (kRead) {                                                             \
    if ((message).has_##field()) (value) = decltype(value)((message).field());       \
  } else {                                                                           \
    (message).set_##field(static_cast<decltype((message).field())>(ToField(value))); \
  }

template <bool kRead>
void Exchange(ModelConfig& model, pb::ModelConfig& message) {
  AFT_FIELD(model.name, message, name);
  AFT_FIELD(model.device, message, device);
  AFT_FIELD(model.weight_format, message, weight_format);
  AFT_FIELD(model.slots, message, slots);
  AFT_FIELD(model.max_step_tokens, message, max_step_tokens);
  AFT_FIELD(model.intra_op_threads, message, intra_op_threads);
  AFT_FIELD(model.version, message, version);
  pb::BatchConfig& batch = *message.mutable_batch();
  AFT_FIELD(model.max_batch_delay, batch, max_delay_us);
  AFT_FIELD(model.max_batch_rows, batch, max_rows);
  AFT_FIELD(model.max_batch_tokens, batch, max_tokens);
  AFT_FIELD(model.parking_bytes, message, parking_bytes);
  AFT_FIELD(model.cpus, message, cpus);
  AFT_FIELD(model.prefix_cache_bytes, message, prefix_cache_bytes);
  AFT_FIELD(model.prefix_cache_interval_tokens, message, prefix_cache_interval_tokens);
}

template <bool kRead>
void Exchange(LimitsConfig& limits, pb::LimitsConfig& message) {
  AFT_FIELD(limits.max_message_bytes, message, max_message_bytes);
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

// A list; an empty one is the default.
#define AFT_LIST(value, message, field)                                 \
  if constexpr (kRead) {                                                \
    (value).assign((message).field().begin(), (message).field().end()); \
  } else {                                                              \
    *(message).mutable_##field() = {(value).begin(), (value).end()};    \
  }

template <bool kRead>
void Exchange(SecurityConfig& security, pb::SecurityConfig& message) {
  AFT_FIELD(security.tls.cert_file, *message.mutable_tls(), cert_file);
  AFT_FIELD(security.tls.key_file, *message.mutable_tls(), key_file);
  AFT_FIELD(security.tls.client_ca_file, *message.mutable_tls(), client_ca_file);
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
void Exchange(StatesConfig& states, pb::StatesConfig& message) {
  AFT_FIELD(states.max_bytes, message, max_bytes);
  AFT_FIELD(states.max_client_bytes, message, max_client_bytes);
  AFT_FIELD(states.default_ttl, message, default_ttl_ms);
  AFT_FIELD(states.max_ttl, message, max_ttl_ms);
  AFT_LIST(states.key_files, message, key_files);
  AFT_FIELD(states.folder, message, folder);
  pb::RedisConfig& redis = *message.mutable_redis();
  AFT_FIELD(states.redis.address, redis, address);
  AFT_FIELD(states.redis.password_file, redis, password_file);
  AFT_FIELD(states.redis.database, redis, database);
  AFT_FIELD(states.redis.prefix, redis, prefix);
  AFT_FIELD(states.redis.timeout, redis, timeout_ms);
  AFT_FIELD(states.redis.max_client_bytes, redis, max_client_bytes);
  AFT_FIELD(states.checkpoint_tokens, message, checkpoint_tokens);
}

template <bool kRead>
void Exchange(RepositoryConfig& repository, pb::RepositoryConfig& message) {
  AFT_FIELD(repository.folder, message, folder);
  AFT_FIELD(repository.latest_versions, message, latest_versions);
  AFT_LIST(repository.versions, message, versions);
  AFT_FIELD(repository.control, message, control);
  AFT_FIELD(repository.drain, message, drain_ms);
  AFT_FIELD(repository.settings.checkpoint_dir, *message.mutable_settings(), path);
  Exchange<kRead>(repository.settings, *message.mutable_settings());
}

// All but the models.
template <bool kRead>
void Exchange(ServerConfig& config, pb::ServerConfig& message) {
  AFT_FIELD(config.listen_address, message, listen_address);
  AFT_FIELD(config.metrics_address, message, metrics_address);
  Exchange<kRead>(config.limits, *message.mutable_limits());
  Exchange<kRead>(config.scheduling, *message.mutable_scheduling());
  AFT_FIELD(config.drain.lame_duck, *message.mutable_drain(), lame_duck_ms);
  AFT_FIELD(config.drain.grace, *message.mutable_drain(), grace_ms);
  AFT_FIELD(config.log.level, *message.mutable_log(), level);
  AFT_FIELD(config.log.format, *message.mutable_log(), format);
  Exchange<kRead>(config.security, *message.mutable_security());
  pb::HealthConfig& health = *message.mutable_health();
  AFT_FIELD(config.health.readiness, health, readiness);
  AFT_FIELD(config.health.max_failed_steps, health, max_failed_steps);
  AFT_FIELD(config.health.step_timeout, health, step_timeout_ms);
  AFT_FIELD(config.health.liveness_grace, health, liveness_grace_ms);
  AFT_FIELD(config.connections.max_age, *message.mutable_connections(), max_age_ms);
  AFT_FIELD(config.connections.max_age_grace, *message.mutable_connections(), max_age_grace_ms);
  Exchange<kRead>(config.states, *message.mutable_states());
  Exchange<kRead>(config.repository, *message.mutable_repository());
}

#undef AFT_FIELD
#undef AFT_LIST

// Every field is set.
pb::ServerConfig MessageOf(ServerConfig& config) {
  pb::ServerConfig message;
  Exchange<false>(config, message);
  for (ModelConfig& model : config.models) {
    pb::ModelConfig& added = *message.add_models();
    Exchange<false>(model, added);
    added.set_path(model.checkpoint_dir);
  }
  return message;
}

// Without a slash at its end.
std::filesystem::path Normal(const std::filesystem::path& path) {
  std::filesystem::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

ModelConfig DefaultModelConfig(const std::string& dir) {
  const std::filesystem::path path = Normal(dir);
  ModelConfig model;
  model.checkpoint_dir = path.string();
  std::error_code failed;  // then the name is empty, and refused
  model.name = Normal(std::filesystem::absolute(path, failed)).filename().string();
  return model;
}

absl::StatusOr<ServerConfig> ParseServerConfig(absl::string_view text, absl::string_view file_name,
                                               const std::string& base_dir) {
  pb::ServerConfig message;
  AFT_RETURN_IF_ERROR(ParseTextProto(text, file_name, message));
  ServerConfig config;
  Exchange<true>(config, message);
  for (std::string* file :
       {&config.security.tls.cert_file, &config.security.tls.key_file,
        &config.security.tls.client_ca_file, &config.security.clients_file, &config.states.folder,
        &config.states.redis.password_file, &config.repository.folder}) {
    if (!file->empty()) *file = (std::filesystem::path(base_dir) / *file).string();
  }
  for (std::string& file : config.states.key_files) {
    if (!file.empty()) file = (std::filesystem::path(base_dir) / file).string();
  }
  std::string& redis = config.states.redis.address;
  if (absl::string_view path = redis; absl::ConsumePrefix(&path, "unix:")) {
    redis = "unix:" + (std::filesystem::path(base_dir) / std::string(path)).string();
  }
  for (pb::ModelConfig& model : *message.mutable_models()) {
    config.models.emplace_back();
    if (!model.path().empty()) {
      // An absolute path replaces the base.
      config.models.back() =
          DefaultModelConfig((std::filesystem::path(base_dir) / model.path()).string());
    }
    Exchange<true>(config.models.back(), model);
  }
  return config;
}

absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  return ParseServerConfig(text, path, std::filesystem::path(path).parent_path().string());
}

std::string FormatEffectiveConfig(ServerConfig config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(MessageOf(config), &text);
  return text;
}

absl::Status CheckReload(ServerConfig running, ServerConfig next) {
  AFT_RETURN_IF_ERROR(ValidateServerConfig(next));
  for (ServerConfig* config : {&running, &next}) {
    const std::string folder = config->repository.folder;
    config->repository = RepositoryConfig();
    config->repository.folder = folder;
    config->log.level = "";
  }
  google::protobuf::util::MessageDifferencer differencer;
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(MessageOf(running), MessageOf(next))) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this takes a restart, so nothing was changed: ",
      absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(differences), {{"\n", "; "}})));
}

}  // namespace aft::server
