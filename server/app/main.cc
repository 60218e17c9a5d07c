// aft-server: serves attention-free transformers over gRPC and HTTP.
//
//   aft-server DIR                         serves one checkpoint with every default
//   aft-server --config server.textproto   see proto/aft/config/v1/server_config.proto
//
// `aft-server --help` lists the exit codes and the signals. For every exit code but 0, one line on
// stderr says why.
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/catching.h"
#include "base/command_line.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "model/api/load.h"
#include "server/app/grpc_server.h"
#include "server/app/server.h"
#include "server/app/signals.h"
#include "server/config/loader.h"
#include "server/config/validation.h"
#include "server/http/http_handler.h"
#include "server/observability/log.h"
#include "server/transport/lingering_connections.h"

namespace aft::server {
namespace {

constexpr int kExitUsage = 1;
constexpr int kExitConfig = 2;
constexpr int kExitListen = 3;
constexpr int kExitNoModel = 4;
constexpr int kExitForced = 5;

// This is added to lame duck and grace for last messages, joining threads and a loading model.
constexpr std::chrono::milliseconds kHardLimitMargin{15'000};

// How long the process may wait at its end for the reader of stderr.
constexpr std::chrono::milliseconds kLastLines{2'000};

// File descriptors for gRPC's connections, whose number has no limit of its own, and for files.
constexpr int64_t kOtherDescriptors = 256;

// The flags of the command line.
struct Flags {
  std::string config;
  std::string model;
  std::string model_name;
  std::optional<std::string> weight_format;
  std::optional<int32_t> slots;
  std::optional<int32_t> threads;
  std::string listen_address;
  std::string http_address;
  std::string metrics_address;
  std::string tls_cert_file;
  std::string tls_key_file;
  std::string tls_client_ca_file;
  std::string log_level;
  std::string ready_file;
  bool print_config = false;
};

ProgramInfo Info() {
  return {.usage_code = kExitUsage,
          .hints = {{"--port", "--listen_address=127.0.0.1:PORT"},
                    {"--host", "--listen_address=HOST:8500"},
                    {"--address", "--listen_address=HOST:PORT"},
                    {"--http_port", "--http_address=127.0.0.1:PORT"},
                    {"--metrics_port", "--metrics_address=127.0.0.1:PORT"},
                    {"--model_path", "--model"},
                    {"--name", "--model_name"},
                    {"--workers", "--threads"},
                    {"--quantize", "--weight_format=int8"}},
          .libraries = absl::StrCat("LibTorch ", kTorchVersion)};
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.option_defaults()->take_last();  // a flag that is given again replaces the first
  app.add_option("--model,DIR", flags.model,
                 "Checkpoint folder to serve, instead of the models of the config");
  app.add_option("--config", flags.config,
                 "Config file: text-proto of aft.config.v1.ServerConfig (docs/configuration.md)")
      ->type_name("FILE");
  app.add_option("--model_name", flags.model_name,
                 "Name of the model in requests; default: the name of its folder")
      ->type_name("NAME");
  app.add_option("--weight_format", flags.weight_format,
                 "Format of the weights in memory: stored, fp32, bf16, int8 or (GPU) fp16")
      ->type_name("FORMAT");
  app.add_option("--slots", flags.slots, "Number of sequences that each model runs at once");
  app.add_option("--threads", flags.threads, "Number of compute threads of each model");
  app.add_option("--listen_address", flags.listen_address,
                 "Address of gRPC; default 127.0.0.1:8500")
      ->type_name("HOST:PORT");
  app.add_option("--http_address", flags.http_address,
                 "Address of OpenAI's HTTP API; off by default, 'none' turns it off")
      ->type_name("HOST:PORT");
  app.add_option("--metrics_address", flags.metrics_address,
                 "Address of /metrics and /status; 'none' turns it off")
      ->type_name("HOST:PORT");
  app.add_option("--tls_cert_file", flags.tls_cert_file,
                 "Certificate chain (PEM) of gRPC and HTTP; needs --tls_key_file")
      ->type_name("FILE");
  app.add_option("--tls_key_file", flags.tls_key_file, "Private key (PEM) of --tls_cert_file")
      ->type_name("FILE");
  app.add_option("--tls_client_ca_file", flags.tls_client_ca_file,
                 "Authorities (PEM) of clients, which then need a certificate")
      ->type_name("FILE");
  app.add_option("--log_level", flags.log_level, "debug, info, warning or error")
      ->type_name("LEVEL");
  app.add_option("--ready_file", flags.ready_file,
                 "Written when the server is ready: the addresses of gRPC, of the metrics and of "
                 "HTTP, one on each line. Removed when the server starts and when it stops")
      ->type_name("FILE");
  // A script's variable that is not set must not turn off what its flag asks for, such as TLS.
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? std::string("must not be empty") : ""; },
      "");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 0) option->check(not_empty);
  }
  app.add_flag("--print_config", flags.print_config, "Print the effective config and exit");
  app.footer(
      "A flag overrides the field of the config that it names.\n\n"
      "SIGTERM and SIGINT drain the server, and a second one ends it at once. Before the server\n"
      "listens, the first one does. On SIGHUP it reads the config and the model repository "
      "again.\n\n"
      "Exit codes:\n"
      "  0      drained\n"
      "  1      bad command line\n"
      "  2      the config, or a file or folder that it names, cannot be used; or the system has "
      "no\n"
      "         threads or memory for it\n"
      "  3      an address cannot be listened on, or the ready file cannot be written\n"
      "  4      no model could be loaded\n"
      "  5      the drain took too long, or the thread of a failed model was stuck\n"
      "  128+n  a second signal n came during the drain, or a first one before the server "
      "listened");
}

int Fail(int code, absl::string_view message) {
  log::Text(absl::StrCat("aft-server: ", message, "\n"));
  return code;
}

// Replaces a text of the config if the flag was given. "none" stands for the empty text.
void Override(const std::string& flag, std::string& value) {
  if (!flag.empty()) value = flag == "none" ? "" : flag;
}

void OverrideModel(const Flags& flags, ModelConfig& model) {
  if (flags.weight_format) model.weight_format = *flags.weight_format;
  if (flags.slots) {
    model.slots = *flags.slots;
    // A step has room for one token of every sequence, and for one of a prompt.
    model.max_step_tokens = std::max(model.max_step_tokens, int64_t{model.slots} + 1);
  }
  if (flags.threads) model.intra_op_threads = *flags.threads;
}

// Flag beats file beats default.
absl::StatusOr<ServerConfig> EffectiveConfig(const Flags& flags) {
  ServerConfig config;
  if (flags.config.empty() && flags.model.empty()) {
    return absl::InvalidArgumentError(
        "nothing to serve: give the folder of a checkpoint or --config FILE; see --help");
  }
  if (!flags.config.empty()) {
    AFT_ASSIGN_OR_RETURN(config, LoadServerConfig(flags.config));
  }
  if (flags.model.empty() && !flags.model_name.empty()) {
    return absl::InvalidArgumentError("--model_name is the name of --model, which is not given");
  }
  if (!flags.model.empty()) {
    config.models = {DefaultModelConfig(flags.model)};
    if (!flags.model_name.empty()) config.models[0].name = flags.model_name;
  }
  for (ModelConfig& model : config.models) OverrideModel(flags, model);
  if (!config.repository.folder.empty()) OverrideModel(flags, config.repository.settings);
  Override(flags.listen_address, config.listen_address);
  Override(flags.http_address, config.http_address);
  Override(flags.metrics_address, config.metrics_address);
  Override(flags.tls_cert_file, config.security.tls.cert_file);
  Override(flags.tls_key_file, config.security.tls.key_file);
  Override(flags.tls_client_ca_file, config.security.tls.client_ca_file);
  Override(flags.log_level, config.log.level);
  const absl::Status valid = ValidateServerConfig(config);
  if (valid.ok()) return config;
  const absl::string_view prefix = flags.config.empty() ? "" : ": ";
  return absl::InvalidArgumentError(absl::StrCat(flags.config, prefix, valid.message()));
}

// Raises the soft limit of file descriptors to the hard one. Shells and service managers keep it at
// 1,024 for programs that use select(2), which this one does not. Every HTTP connection that the
// config allows takes a descriptor, so a limit below their number lets one client use up all.
void RaiseFileLimit(const ServerConfig& config) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  auto needed = kOtherDescriptors + static_cast<int64_t>(LingeringConnections::kMost);
  if (!config.http_address.empty()) needed += config.http.max_connections;
  if (!config.metrics_address.empty()) needed += static_cast<int64_t>(HttpOptions().connections);
  if (static_cast<int64_t>(limit.rlim_cur) >= needed) return;
  log::Warning("server.few_file_descriptors",
               {{"limit", limit.rlim_cur},
                {"needed", needed},
                {"hint", "raise the hard limit, or lower http.max_connections"}});
}

absl::Status WriteReadyFile(const std::string& path, const Server& server) {
  const std::string addresses = absl::StrCat(server.address(), "\n", server.metrics_address(), "\n",
                                             server.http_address(), "\n");
  const absl::Status written = WriteFileAtomically(path, {addresses});
  if (written.ok()) return written;
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", written.message()));
}

void RemoveReadyFile(const std::string& path) {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove(path, ignored);
}

// The threads of the signals need this of a server that has started.
struct Started {
  std::weak_ptr<Server> server;
  std::chrono::milliseconds hard_limit;  // for the whole drain
};

// The threads of the signals share this and outlive the server, because a signal may come while
// main returns.
struct SignalState {
  // Returns null once main ends, so that main then has the last one.
  std::shared_ptr<Server> Get() {
    MutexLock lock(mutex);
    return started.has_value() ? started->server.lock() : nullptr;
  }
  Mutex mutex;
  std::optional<Started> started ABSL_GUARDED_BY(mutex);  // nullopt: there is nothing to drain
};

// Reading the config may block for as long as the process lives, for example on a pipe. Until it is
// read, the server may therefore be destroyed.
void Reload(const Flags& flags, SignalState& state) {
  absl::StatusOr<ServerConfig> config;
  absl::Status status = Catching([&] {  // there may be no memory for it
    config = EffectiveConfig(flags);
    return config.status();
  });
  const std::shared_ptr<Server> server = state.Get();
  if (server == nullptr) return;
  if (status.ok()) status = Catching([&] { return server->Reload(*config); });
  server->SetConfigRejected(!status.ok());
  if (status.ok()) {
    log::Info("config.reloaded");
  } else {
    log::Error("config.reload_failed", {{"error", status.ToString()}});
  }
}

// Waits until the server has drained, says the reason for a code other than 0 and returns the code
// to exit with. If the thread of a model is stuck, ends the process instead, because the server's
// destructor would wait for that thread. It does so too if a reload still has the server, because
// the reload would then destroy it while main returns. REQUIRES: `server` is the caller's only one.
int End(const std::shared_ptr<Server>& server, SignalState& signals, const std::string& ready_file,
        int code, absl::string_view reason) {
  const bool clean = server->Wait();
  RemoveReadyFile(ready_file);
  {
    MutexLock lock(signals.mutex);
    signals.started->server.reset();
  }
  if (code != 0) {
    Fail(code, reason);
  } else if (!clean) {
    code = Fail(kExitForced, "a model that has failed is stuck; see the log");
  }
  if (clean && server.use_count() == 1) return code;
  log::Flush(kLastLines);
  _exit(code);  // nothing that the other thread may still use is taken down
}

std::optional<std::chrono::milliseconds> OnShutdownSignal(SignalState& state, int signal) {
  std::optional<Started> started;
  {
    MutexLock lock(state.mutex);
    started = state.started;
  }
  if (!started.has_value()) {
    log::Warning("signal.early", {{"signal", signal}});
    return std::nullopt;
  }
  log::Info("signal.shutdown",
            {{"signal", signal}, {"hard_limit_ms", started->hard_limit.count()}});
  // No balancer has to notice when a person ends the server.
  const bool lame_duck = signal != SIGINT;
  if (const auto server = state.Get()) server->RequestDrain(lame_duck);
  return started->hard_limit;
}

int Serve(const Flags& flags, const ServerConfig& config,
          const std::shared_ptr<SignalState>& signals) {
  const std::string& ready_file = flags.ready_file;
  absl::StatusOr<std::unique_ptr<Server>> created = Server::Create(
      config, LoadModel,
      {.version = kVersion, .revision = kGitRevision, .type = kBuildType, .torch = kTorchVersion});
  if (!created.ok()) return Fail(kExitConfig, created.status().message());
  const std::shared_ptr<Server> server = *std::move(created);
  if (const absl::Status status = server->Start(); !status.ok()) {
    // UNAVAILABLE: the server could not listen. Nearly every other error is one of a file or folder
    // that the config names.
    return Fail(absl::IsUnavailable(status) ? kExitListen : kExitConfig, status.message());
  }
  {
    MutexLock lock(signals->mutex);
    signals->started =
        Started{server, config.drain.lame_duck + config.drain.grace + kHardLimitMargin};
  }
  HandleReloadSignal([signals, flags] { Reload(flags, *signals); });

  const absl::Status ready = server->WaitReady();
  if (!ready.ok() && !absl::IsCancelled(ready)) {
    server->RequestDrain(/*lame_duck=*/false);
    return End(server, *signals, ready_file, kExitNoModel, ready.message());
  }
  if (ready.ok()) {
    const absl::Status written =
        ready_file.empty() ? absl::OkStatus() : WriteReadyFile(ready_file, *server);
    if (!written.ok()) {
      server->RequestDrain(/*lame_duck=*/false);
      return End(server, *signals, ready_file, kExitListen, written.message());
    }
    log::Info("server.ready", {{"address", server->address()}});
  }
  return End(server, *signals, ready_file, 0, "");
}

// Opens /dev/null in the place of each standard stream that is closed. Otherwise the next file that
// the process opens, or the next connection, would get the number of standard error, and with it
// the log.
void OpenStandardStreams() {
  int fd = -1;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  BlockShutdownSignals();
  // When a large block is freed, the allocator raises the size from which each block has a mapping
  // of its own. Snapshots would then come from its heaps, where small blocks split the holes that
  // they leave, so that memory would grow with every stored answer.
  // NOLINTBEGIN(concurrency-mt-unsafe): no thread yet
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
  // NOLINTEND(concurrency-mt-unsafe)
  signal(SIGPIPE, SIG_IGN);  // a closed stderr or socket is no reason to die
  // With this setting the matrix products of a GPU give the same bits from run to run. It is set
  // here, because a process with threads must not change its environment.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread yet
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  QuietLibraries();
  const std::unique_ptr<CLI::App> app =
      MakeApp("Serves attention-free transformers over gRPC and OpenAI's HTTP API.", "aft-server");
  Flags flags;
  AddFlags(*app, flags);
  if (const auto code = ParseCommandLine(*app, argc, argv, Info())) return *code;
  // Reading the config and starting may take for as long as a file system or a pipe is silent.
  const auto signals = std::make_shared<SignalState>();
  HandleShutdownSignals([signals](int signal) { return OnShutdownSignal(*signals, signal); },
                        [path = flags.ready_file] { RemoveReadyFile(path); }, kExitForced);
  // A server that was killed leaves its file. The addresses in it are wrong from here on, even if
  // the config cannot be used.
  if (!flags.print_config) RemoveReadyFile(flags.ready_file);
  const absl::StatusOr<ServerConfig> config = EffectiveConfig(flags);
  if (!config.ok()) return Fail(kExitConfig, config.status().message());
  if (flags.print_config) {
    if (std::fputs(FormatEffectiveConfig(*config).c_str(), stdout) < 0 ||
        std::fflush(stdout) != 0) {
      return Fail(kExitConfig,
                  absl::StrCat("cannot write the config: ", std::system_category().message(errno)));
    }
    return 0;
  }
  log::Text(absl::StrCat("# Config without defaults (--print_config shows every field)\n",
                         FormatChangedConfig(*config)));
  // Both were validated.
  log::Init(*log::ParseLevel(config->log.level), *log::ParseFormat(config->log.format));
  RaiseFileLimit(*config);
  return Serve(flags, *config, signals);
}

}  // namespace
}  // namespace aft::server

int main(int argc, char** argv) {
  int code = aft::server::kExitConfig;
  const auto flush = [] {
    aft::server::log::Flush(aft::server::kLastLines);
    return absl::OkStatus();
  };
  const absl::Status status = aft::Catching([&] {
    code = aft::server::Main(argc, argv);
    return flush();
  });
  if (status.ok()) return code;
  aft::Catching(flush).IgnoreError();
  // The log may have no thread.
  std::fputs(absl::StrCat("aft-server: ", status.message(), "\n").c_str(), stderr);
  return code;
}
