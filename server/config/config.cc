#include "server/config/config.h"

#include <initializer_list>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/cpus.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/config/ip_address.h"

namespace aft::server {
namespace {

absl::Status CheckAddress(absl::string_view path, absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  const bool plain_host = host.find(':') == absl::string_view::npos;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  uint32_t port = 0;
  if (colon == absl::string_view::npos || host.empty() || !(plain_host || bracketed) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return BadField(
        path, absl::StrCat("must be host:port with a port in [0, 65535], got \"", address, "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(absl::string_view path, absl::string_view device) {
  absl::string_view number = device;
  int32_t index = 0;
  const bool gpu = absl::ConsumePrefix(&number, "cuda:") &&
                   number.find_first_not_of("0123456789") == absl::string_view::npos &&
                   absl::SimpleAtoi(number, &index);
  if (gpu || device == "cpu") return absl::OkStatus();
  return BadField(path, absl::StrCat("must be \"cpu\" or \"cuda:N\", got \"", device, "\""));
}

absl::Status CheckWeightFormat(const std::string& path, const ModelConfig& model) {
  const std::string& format = model.weight_format;
  if (model.device == "cpu") return CheckOneOf(path, format, {"stored", "fp32", "bf16", "int8"});
  return CheckOneOf(path, format, {"stored", "fp32", "bf16", "fp16"});
}

absl::Status CheckCpus(const std::string& path, const ModelConfig& model) {
  if (model.cpus.empty()) return absl::OkStatus();
  if (model.device != "cpu") return BadField(path, "is for models on the CPU");
  const absl::Status status = ParseCpus(model.cpus).status();
  return status.ok() ? status : BadField(path, status.message());
}

// All but which model it is.
absl::Status CheckSettings(const std::string& path, const ModelConfig& model) {
  AFT_RETURN_IF_ERROR(CheckDevice(path + ".device", model.device));
  AFT_RETURN_IF_ERROR(CheckWeightFormat(path + ".weight_format", model));
  AFT_RETURN_IF_ERROR(CheckRange(path + ".slots", model.slots, 1, 65'536));
  AFT_RETURN_IF_ERROR(
      CheckRange(path + ".max_step_tokens", model.max_step_tokens, model.slots + 1, 1 << 20));
  AFT_RETURN_IF_ERROR(CheckRange(path + ".intra_op_threads", model.intra_op_threads, 0, 1024));
  AFT_RETURN_IF_ERROR(CheckCpus(path + ".cpus", model));
  AFT_RETURN_IF_ERROR(
      CheckRange(path + ".batch.max_delay_us", model.max_batch_delay.count(), 0, 1'000'000));
  AFT_RETURN_IF_ERROR(CheckRange(path + ".batch.max_rows", model.max_batch_rows, 1, 65'536));
  AFT_RETURN_IF_ERROR(CheckRange(path + ".batch.max_tokens", model.max_batch_tokens,
                                 model.max_batch_rows, 1 << 20));
  const int64_t most = int64_t{1} << 40;
  AFT_RETURN_IF_ERROR(CheckRange(path + ".parking_bytes", model.parking_bytes, 0, most));
  AFT_RETURN_IF_ERROR(CheckRange(path + ".prefix_cache_bytes", model.prefix_cache_bytes, 0, most));
  return CheckRange(path + ".prefix_cache_interval_tokens", model.prefix_cache_interval_tokens, 0,
                    1 << 26);
}

absl::Status CheckModel(const std::string& path, const ModelConfig& model) {
  if (model.checkpoint_dir.empty()) return BadField(path + ".path", "must be set");
  AFT_RETURN_IF_ERROR(CheckName(path + ".name", model.name));
  AFT_RETURN_IF_ERROR(CheckName(path + ".version", model.version));
  return CheckSettings(path, model);
}

absl::Status CheckLimits(const LimitsConfig& limits) {
  const int64_t one = 1;
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_queued_requests", limits.max_queued_requests, 1, 1'000'000));
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_prompt_bytes", limits.max_prompt_bytes, 1, one << 29));
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_message_bytes", limits.max_message_bytes,
                                 limits.max_prompt_bytes, (one << 31) - 1));
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_memory_bytes", limits.max_memory_bytes, 0, one << 40));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_client_memory_bytes", limits.max_client_memory_bytes, 0, one << 40));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.write_stall_ms", limits.write_stall.count(), 10, 3'600'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_request_ms", limits.max_request.count(), 1, 604'800'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_prompt_tokens", limits.max_prompt_tokens, 1, one << 26));
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_texts", limits.max_texts, 1, 400));
  // A prompt that is allowed at all must be able to wait, else it is refused for ever.
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_queued_tokens", limits.max_queued_tokens,
                                 limits.max_prompt_tokens, one << 40));
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_max_tokens", limits.max_max_tokens, 1, one << 30));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.default_max_tokens", limits.default_max_tokens, 1, limits.max_max_tokens));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_stream_buffer_bytes", limits.max_stream_buffer_bytes, 256, one << 30));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_concurrent_streams", limits.max_concurrent_streams, 1, 1'000'000));
  constexpr int kMostStreams = 65'536;
  AFT_RETURN_IF_ERROR(CheckRange("limits.max_watches", limits.max_watches, 1, kMostStreams));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_client_watches", limits.max_client_watches, 0, kMostStreams));
  AFT_RETURN_IF_ERROR(
      CheckRange("limits.max_infer_streams", limits.max_infer_streams, 0, kMostStreams));
  return CheckRange("limits.max_client_infer_streams", limits.max_client_infer_streams, 0,
                    kMostStreams);
}

absl::Status CheckSecurity(const SecurityConfig& security) {
  const TlsConfig& tls = security.tls;
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return BadField("security.tls", "needs both cert_file and key_file, or none");
  }
  if (!tls.client_ca_file.empty() && tls.cert_file.empty()) {
    return BadField("security.tls.client_ca_file", "needs cert_file and key_file");
  }
  for (size_t i = 0; i < security.trusted_proxies.size(); ++i) {
    const absl::Status network = IpNetwork::Parse(security.trusted_proxies[i]).status();
    if (!network.ok()) {
      return BadField(absl::StrCat("security.trusted_proxies[", i, "]"), network.message());
    }
  }
  AFT_RETURN_IF_ERROR(CheckRange("security.reload_s", security.reload.count(), 1, 86'400));
  return CheckRange("security.max_client_labels", security.max_client_labels, 0, 1000);
}

absl::Status CheckScheduling(const SchedulingConfig& scheduling) {
  const int32_t most = 65'536;
  AFT_RETURN_IF_ERROR(CheckRange("scheduling.age_ms", scheduling.age.count(), 1, 3'600'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("scheduling.max_client_slots", scheduling.max_client_slots, 0, most));
  AFT_RETURN_IF_ERROR(CheckRange("scheduling.reserved_slots", scheduling.reserved_slots, -1, most));
  AFT_RETURN_IF_ERROR(CheckRange("scheduling.max_client_queued_requests",
                                 scheduling.max_client_queued_requests, 0, 1'000'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("scheduling.max_queue_ms", scheduling.max_queue.count(), 0, 86'400'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("scheduling.step_target_ms", scheduling.step_target.count(), 0, 60'000));
  return CheckRange("scheduling.itl_target_ms", scheduling.itl_target.count(), 0, 60'000);
}

absl::Status CheckRedis(const StatesConfig& states) {
  const RedisConfig& redis = states.redis;
  const absl::string_view path = "states.redis.address";
  if (!redis.address.empty()) {
    if (absl::StrContains(redis.address, '@') && !absl::StartsWith(redis.address, "unix:")) {
      // The address is not repeated: it would be in the log.
      return BadField(path, "must have no user and password: states.redis.password_file has it");
    }
    absl::string_view socket = redis.address;
    if (!absl::ConsumePrefix(&socket, "unix:")) {
      AFT_RETURN_IF_ERROR(CheckAddress(path, redis.address));
    } else if (socket.empty() || socket.size() > 107) {  // of sockaddr_un
      return BadField(path, absl::StrCat("must name a socket of 1 to 107 bytes behind \"unix:\", ",
                                         "got \"", socket, "\""));
    }
    if (!states.folder.empty()) return BadField(path, "excludes states.folder");
    if (states.key_files.empty()) {
      return BadField(path, "needs states.key_files: other servers must open its states");
    }
    if (states.max_bytes == 0) return BadField(path, "needs states.max_bytes above 0");
  }
  AFT_RETURN_IF_ERROR(CheckRange("states.redis.database", redis.database, 0, 65'535));
  if (redis.prefix.size() > 128) {
    return BadField("states.redis.prefix", "must have at most 128 bytes");
  }
  AFT_RETURN_IF_ERROR(CheckRange("states.redis.timeout_ms", redis.timeout.count(), 1, 60'000));
  return CheckRange("states.redis.max_client_bytes", redis.max_client_bytes, 1, int64_t{1} << 50);
}

absl::Status CheckStates(const StatesConfig& states) {
  const int64_t most = int64_t{1} << 50;
  AFT_RETURN_IF_ERROR(CheckRange("states.max_bytes", states.max_bytes, 0, most));
  AFT_RETURN_IF_ERROR(CheckRange("states.max_client_bytes", states.max_client_bytes, 0, most));
  AFT_RETURN_IF_ERROR(
      CheckRange("states.max_ttl_ms", states.max_ttl.count(), 1, int64_t{31'536'000'000}));
  for (size_t i = 0; i < states.key_files.size(); ++i) {
    if (states.key_files[i].empty()) {
      return BadField(absl::StrCat("states.key_files[", i, "]"), "must not be empty");
    }
  }
  if (!states.folder.empty() && states.key_files.empty()) {
    return BadField("states.folder",
                    "needs states.key_files: the next server must open its states");
  }
  if (!states.folder.empty() && states.max_bytes == 0) {
    return BadField("states.folder", "needs states.max_bytes above 0");
  }
  AFT_RETURN_IF_ERROR(CheckRedis(states));
  AFT_RETURN_IF_ERROR(CheckRange("states.checkpoint_tokens", states.checkpoint_tokens, 0, 1 << 30));
  return CheckRange("states.default_ttl_ms", states.default_ttl.count(), 1, states.max_ttl.count());
}

absl::Status CheckRepository(const RepositoryConfig& repository, const SecurityConfig& security) {
  AFT_RETURN_IF_ERROR(
      CheckRange("repository.latest_versions", repository.latest_versions, 0, 1000));
  for (size_t i = 0; i < repository.versions.size(); ++i) {
    AFT_RETURN_IF_ERROR(CheckRange(absl::StrCat("repository.versions[", i, "]"),
                                   repository.versions[i], 1, std::numeric_limits<int64_t>::max()));
  }
  const std::string control = "repository.control";
  AFT_RETURN_IF_ERROR(CheckOneOf(control, repository.control, {"none", "admin", "anyone"}));
  if (repository.control == "admin" && security.clients_file.empty()) {
    return BadField(control, "\"admin\" needs security.clients_file: it says who is one");
  }
  AFT_RETURN_IF_ERROR(CheckRange("repository.drain_ms", repository.drain.count(), 0, 86'400'000));
  const ModelConfig& settings = repository.settings;
  if (!settings.name.empty() || !settings.checkpoint_dir.empty() ||
      settings.version != ModelConfig().version) {
    return BadField("repository.settings",
                    "name, path and version are not to be set: they are those of the folders");
  }
  return CheckSettings("repository.settings", settings);
}

absl::Status CheckHealth(const HealthConfig& health) {
  AFT_RETURN_IF_ERROR(CheckOneOf("health.readiness", health.readiness, {"all", "any"}));
  AFT_RETURN_IF_ERROR(CheckRange("health.max_failed_steps", health.max_failed_steps, 1, 1'000'000));
  AFT_RETURN_IF_ERROR(
      CheckRange("health.step_timeout_ms", health.step_timeout.count(), 1, 3'600'000));
  return CheckRange("health.liveness_grace_ms", health.liveness_grace.count(), 0, 3'600'000);
}

}  // namespace

absl::Status ValidateServerConfig(const ServerConfig& config) {
  AFT_RETURN_IF_ERROR(CheckAddress("listen_address", config.listen_address));
  if (!config.metrics_address.empty()) {
    AFT_RETURN_IF_ERROR(CheckAddress("metrics_address", config.metrics_address));
  }
  if (config.models.empty() && config.repository.folder.empty()) {
    return BadField("models", "must name at least one model, unless there is a repository.folder");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < config.models.size(); ++i) {
    const std::string path = absl::StrCat("models[", i, "]");
    AFT_RETURN_IF_ERROR(CheckModel(path, config.models[i]));
    if (!names.insert(config.models[i].name).second) {
      return BadField(path + ".name", absl::StrCat("is used by another model too: \"",
                                                   config.models[i].name, "\""));
    }
  }
  AFT_RETURN_IF_ERROR(CheckLimits(config.limits));
  AFT_RETURN_IF_ERROR(CheckSecurity(config.security));
  AFT_RETURN_IF_ERROR(CheckScheduling(config.scheduling));
  AFT_RETURN_IF_ERROR(CheckStates(config.states));
  AFT_RETURN_IF_ERROR(CheckRepository(config.repository, config.security));
  AFT_RETURN_IF_ERROR(
      CheckRange("drain.lame_duck_ms", config.drain.lame_duck.count(), 0, 3'600'000));
  AFT_RETURN_IF_ERROR(CheckRange("drain.grace_ms", config.drain.grace.count(), 0, 3'600'000));
  AFT_RETURN_IF_ERROR(
      CheckOneOf("log.level", config.log.level, {"debug", "info", "warning", "error"}));
  AFT_RETURN_IF_ERROR(CheckOneOf("log.format", config.log.format, {"logfmt", "json"}));
  AFT_RETURN_IF_ERROR(CheckHealth(config.health));
  constexpr int64_t kDay = 86'400'000;
  AFT_RETURN_IF_ERROR(
      CheckRange("connections.max_age_ms", config.connections.max_age.count(), 0, kDay));
  return CheckRange("connections.max_age_grace_ms", config.connections.max_age_grace.count(), 0,
                    kDay);
}

}  // namespace aft::server
