#include "server/config/validation.h"

#include <initializer_list>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aft/config/v1/server_config.pb.h"
#include "base/cpus.h"
#include "base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"
#include "model/config/formats.h"
#include "server/config/checks.h"
#include "server/config/fields.h"
#include "server/config/ip_address.h"
#include "server/config/loader.h"

namespace aft::server {
namespace {

absl::Status CheckAddress(absl::string_view path, absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  const bool plain_host = host.find(':') == absl::string_view::npos;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const absl::string_view digits = address.substr(colon + 1);
  uint32_t port = 0;
  if (colon == absl::string_view::npos || host.empty() || !(plain_host || bracketed) ||
      digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port > 65535) {
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
  const std::vector<std::string> names = WeightFormatNames(/*on_gpu=*/model.device != "cpu");
  return CheckOneOf(path, model.weight_format, {names.begin(), names.end()});
}

absl::Status CheckCpus(const std::string& path, const ModelConfig& model) {
  if (model.cpus.empty()) return absl::OkStatus();
  if (model.device != "cpu") return BadField(path, "is for models on the CPU");
  const absl::Status status = ParseCpus(model.cpus).status();
  return status.ok() ? status : BadField(path, status.message());
}

// Checks everything except which model it is.
absl::Status CheckSettings(const std::string& path, const ModelConfig& model) {
  AFT_RETURN_IF_ERROR(CheckDevice(path + ".device", model.device));
  AFT_RETURN_IF_ERROR(CheckWeightFormat(path + ".weight_format", model));
  AFT_RETURN_IF_ERROR(CheckOneOf(path + ".chat_template", model.chat_template,
                                 {"auto", "plain", "chatml", "rwkv-world", "custom"}));
  if ((model.chat_template == "custom") == (model.chat_format == ChatFormat())) {
    return BadField(path + ".chat_format",
                    "must be set if chat_template is \"custom\", and only then");
  }
  // These are the limits of a request's stop strings.
  if (model.chat_format.stop.size() > 16) {
    return BadField(path + ".chat_format.stop", "must have at most 16 entries");
  }
  for (const std::string& stop : model.chat_format.stop) {
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      return BadField(path + ".chat_format.stop",
                      absl::StrCat("must have strings of 1 to ", kMaxStopStringBytes, " bytes"));
    }
  }
  return CheckCpus(path + ".cpus", model);
}

absl::Status CheckModel(const std::string& path, const ModelConfig& model) {
  AFT_RETURN_IF_ERROR(CheckName(path + ".name", model.name));
  AFT_RETURN_IF_ERROR(CheckName(path + ".version", model.version));
  return CheckSettings(path, model);
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
  return absl::OkStatus();
}

// Browsers never send another form of an origin, so the entry would have no effect.
bool IsOrigin(absl::string_view text) {
  const size_t scheme = text.find("://");
  return text == "*" || text == "null" ||
         (scheme != absl::string_view::npos && scheme > 0 && scheme + 3 < text.size() &&
          text.find_first_of("/?#*@ ", scheme + 3) == absl::string_view::npos);
}

bool IsHost(absl::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  return text == "*" || (!text.empty() && text.find_first_of("/*@ ") == absl::string_view::npos &&
                         (bracketed || text.find(':') == absl::string_view::npos));
}

absl::Status CheckHttp(const HttpConfig& http) {
  for (size_t i = 0; i < http.allow_origins.size(); ++i) {
    if (IsOrigin(http.allow_origins[i])) continue;
    return BadField(absl::StrCat("http.allow_origins[", i, "]"),
                    absl::StrCat("must be scheme://host or scheme://host:port, or \"*\", got \"",
                                 http.allow_origins[i], "\""));
  }
  for (size_t i = 0; i < http.allowed_hosts.size(); ++i) {
    if (IsHost(http.allowed_hosts[i])) continue;
    return BadField(absl::StrCat("http.allowed_hosts[", i, "]"),
                    absl::StrCat("must be a host name without a port, or \"*\", got \"",
                                 http.allowed_hosts[i], "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckRedis(const StatesConfig& states) {
  const RedisConfig& redis = states.redis;
  const absl::string_view path = "states.redis.address";
  if (redis.address.empty()) {
    // States would be kept in the memory of each server, although the config is made for Redis.
    return redis.password_file.empty()
               ? absl::OkStatus()
               : BadField(path, "must be set together with states.redis.password_file");
  }
  if (absl::StrContains(redis.address, '@') && !absl::StartsWith(redis.address, "unix:")) {
    // The message must not repeat the address, because it would put the password into the log.
    return BadField(path, "must have no user and password: use states.redis.password_file");
  }
  absl::string_view socket = redis.address;
  if (!absl::ConsumePrefix(&socket, "unix:")) {
    AFT_RETURN_IF_ERROR(CheckAddress(path, redis.address));
  } else if (socket.empty() || socket.size() > 107) {  // the limit of sockaddr_un
    return BadField(path, absl::StrCat("must name a socket of 1 to 107 bytes after \"unix:\", ",
                                       "got \"", socket, "\""));
  }
  if (!states.folder.empty()) return BadField(path, "excludes states.folder");
  if (states.key_files.empty()) {
    return BadField(path, "needs states.key_files: other servers must open its states");
  }
  if (states.max_bytes == 0) return BadField(path, "needs states.max_bytes above 0");
  return absl::OkStatus();
}

absl::Status CheckStates(const StatesConfig& states) {
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
  return CheckRedis(states);
}

absl::Status CheckRepository(const RepositoryConfig& repository, const SecurityConfig& security) {
  if (repository.control == "admin" && security.clients_file.empty()) {
    return BadField("repository.control",
                    "\"admin\" needs security.clients_file: it names the admins");
  }
  const ModelConfig& settings = repository.settings;
  if (!settings.name.empty() || !settings.checkpoint_dir.empty() ||
      settings.version != ModelConfig().version) {
    return BadField("repository.settings",
                    "must not have name, path or version: the folders set them");
  }
  return CheckSettings("repository.settings", settings);
}

}  // namespace

absl::Status ValidateServerConfig(const ServerConfig& config) {
  AFT_RETURN_IF_ERROR(CheckFields(MessageOf(config)));
  AFT_RETURN_IF_ERROR(CheckAddress("listen_address", config.listen_address));
  if (!config.metrics_address.empty()) {
    AFT_RETURN_IF_ERROR(CheckAddress("metrics_address", config.metrics_address));
  }
  if (!config.http_address.empty()) {
    AFT_RETURN_IF_ERROR(CheckAddress("http_address", config.http_address));
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
  AFT_RETURN_IF_ERROR(CheckSecurity(config.security));
  AFT_RETURN_IF_ERROR(CheckHttp(config.http));
  AFT_RETURN_IF_ERROR(CheckStates(config.states));
  return CheckRepository(config.repository, config.security);
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
      "this needs a restart, so nothing was changed: ",
      absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(differences), {{"\n", "; "}})));
}

}  // namespace aft::server
