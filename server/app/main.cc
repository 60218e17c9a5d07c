// aft-server: serves attention-free transformers over gRPC.
//
//   aft-server --model DIR                 one checkpoint, every default
//   aft-server --config server.textproto   see proto/aft/config/v1/server_config.proto
//
// Exit codes:
//   0        drained after SIGTERM or SIGINT; --version; --print_config
//   1        bad command line; --help (Abseil's flag library ends so)
//   2        the config cannot be read or is invalid
//   3        an address cannot be listened on, or --ready_file cannot be written
//   4        no model could be loaded
//   5        the drain was forced: it took longer than lame_duck + grace + 15 s, or the thread of a
//            model that had failed was stuck
//   128 + n  a second signal n during the drain
// SIGHUP has the config file read again; the log says what came of it.
// For every code but 0, one line on stderr says why.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/api/load.h"
#include "server/app/grpc_server.h"
#include "server/app/server.h"
#include "server/app/signals.h"
#include "server/app/version.h"
#include "server/config/loader.h"
#include "server/config/validation.h"
#include "server/observability/log.h"

ABSL_FLAG(std::string, config, "", "Config file (text-proto of aft.config.v1.ServerConfig).");
ABSL_FLAG(std::string, model, "",
          "Checkpoint folder to serve with every default, instead of the config's models.");
ABSL_FLAG(std::string, model_name, "", "Name of --model, instead of its folder's.");
ABSL_FLAG(std::string, weight_format, "stored",
          "Storage format of the weights of --model, as models.weight_format of the config.");
ABSL_FLAG(std::string, listen_address, "", "host:port of gRPC, instead of the config's.");
ABSL_FLAG(std::string, http_address, "",
          "host:port of OpenAI's HTTP API, instead of the config's; 'none' turns it off.");
ABSL_FLAG(std::string, metrics_address, "",
          "host:port of /metrics and /status, instead of the config's; 'none' turns it off.");
ABSL_FLAG(std::string, ready_file, "",
          "Written when the server is ready: its address of gRPC, of the metrics and of HTTP, a "
          "line each. "
          "Removed when it stops.");
ABSL_FLAG(bool, print_config, false, "Print the effective config and exit.");

namespace aft::server {
namespace {

constexpr int kExitConfig = 2;
constexpr int kExitListen = 3;
constexpr int kExitNoModel = 4;
constexpr int kExitForced = 5;

// Beyond lame duck and grace: the last messages, joining threads, a model still loading.
constexpr std::chrono::milliseconds kHardLimitMargin{15'000};

// How long the end of the process may wait for whoever reads stderr.
constexpr std::chrono::milliseconds kLastLines{2'000};

constexpr char kUsage[] =
    "Serves attention-free transformers over gRPC.\n\n"
    "  aft-server --model DIR       serve one checkpoint with every default\n"
    "  aft-server --config FILE     see proto/aft/config/v1/server_config.proto\n\n"
    "SIGTERM and SIGINT drain the server; a second one ends it at once. SIGHUP has the config "
    "read\n"
    "again, and the repository.\n"
    "Exit codes: 0 drained, 1 bad command line, 2 bad config, 3 address or ready file unusable,\n"
    "4 no model could be loaded, 5 drain forced (took too long, or a model was stuck), 128+n "
    "second signal n.\n";

int Fail(int code, absl::string_view message) {
  log::Text(absl::StrCat("aft-server: ", message, "\n"));
  return code;
}

std::string VersionText() {
  return absl::StrCat("aft-server ", kVersion, "\ngit revision ", kGitRevision, "\nbuild type ",
                      kBuildType, "\nLibTorch ", kTorchVersion, "\n");
}

// Flag beats file beats default.
absl::StatusOr<ServerConfig> EffectiveConfig() {
  ServerConfig config;
  const std::string file = absl::GetFlag(FLAGS_config);
  const std::string model = absl::GetFlag(FLAGS_model);
  if (file.empty() && model.empty()) {
    return absl::InvalidArgumentError("--config FILE or --model DIR is needed; see --help");
  }
  if (!file.empty()) {
    absl::StatusOr<ServerConfig> loaded = LoadServerConfig(file);
    if (!loaded.ok()) return loaded.status();
    config = *std::move(loaded);
  }
  const std::string name = absl::GetFlag(FLAGS_model_name);
  if (model.empty() && !name.empty()) {
    return absl::InvalidArgumentError("--model_name is the name of --model, which is not given");
  }
  if (!model.empty()) {
    config.models = {DefaultModelConfig(model)};
    if (!name.empty()) config.models[0].name = name;
    config.models[0].weight_format = absl::GetFlag(FLAGS_weight_format);
  }
  const std::string listen = absl::GetFlag(FLAGS_listen_address);
  if (!listen.empty()) config.listen_address = listen;
  const std::string http = absl::GetFlag(FLAGS_http_address);
  if (!http.empty()) config.http_address = http == "none" ? "" : http;
  const std::string metrics = absl::GetFlag(FLAGS_metrics_address);
  if (!metrics.empty()) config.metrics_address = metrics == "none" ? "" : metrics;
  const absl::Status valid = ValidateServerConfig(config);
  if (valid.ok()) return config;
  const absl::string_view prefix = file.empty() ? "" : ": ";
  return absl::InvalidArgumentError(absl::StrCat(file, prefix, valid.message()));
}

void InitLog(const LogConfig& config) {
  // Both were validated.
  log::Init(*log::ParseLevel(config.level), *log::ParseFormat(config.format));
  QuietLibraries();
}

// Readers see the whole file or none.
absl::Status WriteReadyFile(const std::string& path, const Server& server) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << server.address() << "\n"
         << server.metrics_address() << "\n"
         << server.http_address() << "\n";
    file.flush();
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", temporary));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
}

void RemoveReadyFile(const std::string& path) {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove(path, ignored);
}

void Reload(Server& server) {
  const absl::StatusOr<ServerConfig> config = EffectiveConfig();
  const absl::Status status = config.ok() ? server.Reload(*config) : config.status();
  if (status.ok()) {
    log::Info("config.reloaded");
  } else {
    log::Error("config.reload_failed", {{"error", status.ToString()}});
  }
}

int Serve(const ServerConfig& config) {
  const std::string ready_file = absl::GetFlag(FLAGS_ready_file);
  RemoveReadyFile(ready_file);
  absl::StatusOr<std::unique_ptr<Server>> created = Server::Create(
      config, LoadModel,
      {.version = kVersion, .revision = kGitRevision, .type = kBuildType, .torch = kTorchVersion});
  if (!created.ok()) return Fail(kExitConfig, created.status().message());
  const std::shared_ptr<Server> server = *std::move(created);
  if (const absl::Status status = server->Start(); !status.ok()) {
    return Fail(kExitListen, status.message());
  }
  // The handler outlives the server: a signal may come while main returns.
  HandleShutdownSignals(
      [weak = std::weak_ptr<Server>(server)](int signal) {
        // No balancer has to notice when a person ends the server.
        const bool lame_duck = signal != SIGINT;
        if (const std::shared_ptr<Server> alive = weak.lock()) alive->RequestDrain(lame_duck);
      },
      [weak = std::weak_ptr<Server>(server)] {
        if (const std::shared_ptr<Server> alive = weak.lock()) Reload(*alive);
      },
      config.drain.lame_duck + config.drain.grace + kHardLimitMargin, kExitForced);

  const absl::Status ready = server->WaitReady();
  if (ready.ok()) {
    if (!ready_file.empty()) {
      if (const absl::Status status = WriteReadyFile(ready_file, *server); !status.ok()) {
        return Fail(kExitListen, status.message());
      }
    }
    log::Info("server.ready", {{"address", server->address()}});
  } else if (!absl::IsCancelled(ready)) {
    server->Drain();  // before the line that says why, so that it is the last
    return Fail(kExitNoModel, ready.message());
  }
  const bool clean = server->Wait();
  RemoveReadyFile(ready_file);
  if (clean) return 0;
  Fail(kExitForced, "a model that has failed is stuck; see the log");
  log::Flush(kLastLines);
  _exit(kExitForced);  // nothing that its thread may still use is taken down
}

int Main(int argc, char** argv) {
  BlockShutdownSignals();
  // The allocator raises the size from which it maps blocks by themselves, once a large one is
  // freed. Snapshots would then come from its heaps, where small blocks split the holes that they
  // leave, so that memory grows with every answer that is kept.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
  signal(SIGPIPE, SIG_IGN);  // a closed stderr or socket is no reason to die
  // A GPU's matrix products give the same bits from run to run. Here, because a process with
  // threads must not; somebody who has set it knows why.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread yet
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  absl::SetProgramUsageMessage(kUsage);
  absl::FlagsUsageConfig usage;
  usage.version_string = VersionText;
  usage.contains_helpshort_flags = usage.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "app/main.cc");
  };
  usage.normalize_filename = [](absl::string_view file) {  // not the builder's whole path
    const size_t start = file.rfind("server/app/");
    return std::string(start == absl::string_view::npos ? file : file.substr(start));
  };
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    return Fail(1, absl::StrCat("unexpected argument '", arguments[1], "'; see --help"));
  }
  const absl::StatusOr<ServerConfig> config = EffectiveConfig();
  if (!config.ok()) return Fail(kExitConfig, config.status().message());
  const std::string text = FormatEffectiveConfig(*config);
  if (absl::GetFlag(FLAGS_print_config)) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  log::Text(absl::StrCat("# Effective config\n", text));
  InitLog(config->log);
  return Serve(*config);
}

}  // namespace
}  // namespace aft::server

int main(int argc, char** argv) {
  const int code = aft::server::Main(argc, argv);
  aft::server::log::Flush(aft::server::kLastLines);
  return code;
}
