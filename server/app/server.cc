#include "server/app/server.h"

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "server/admission/client_directory.h"
#include "server/admission/tls_context.h"
#include "server/config/loader.h"
#include "server/config/memory_plan.h"
#include "server/config/validation.h"
#include "server/observability/log.h"
#include "server/scheduling/time.h"
#include "server/transport/accept_again.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The time to send the last messages of the streams that end when the grace is over.
constexpr milliseconds kFlushTime{2'000};

constexpr milliseconds kWatchInterval{100};

std::vector<ModelReport> ReportOf(const ModelRegistry& registry) {
  std::vector<ModelReport> reports;
  std::map<std::string, ModelStatus> models;
  for (ModelStatus& model : registry.List()) models[model.name] = std::move(model);
  // A model that has left the repository keeps its series, and may still run requests.
  for (const auto& [name, ages] : registry.Ages()) {
    ModelReport& report = reports.emplace_back();
    report.model = name;
    report.oldest_waiting_seconds = Seconds(ages.oldest_waiting);
    report.last_step_age_seconds = Seconds(ages.since_step);
    const ModelStatus& model = models[name];
    if (!model.info.has_value()) continue;
    report.version = model.version;
    report.device_memory_used = static_cast<double>(model.device_memory_used);
    report.device_memory_total = static_cast<double>(model.device_memory_total);
    report.fingerprint = absl::StrFormat("%016x", model.info->fingerprint);
    report.architecture = model.info->architecture;
    report.device = model.info->device;
    report.weight_format = model.info->weight_format;
  }
  return reports;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(ServerConfig config, ModelLoader loader,
                                                       const BuildInfo& build) {
  AFT_RETURN_IF_ERROR(ValidateServerConfig(config));
  AFT_RETURN_IF_ERROR(CheckMemory(MemoryOfConfig(config), MemoryLimit()));
  return std::unique_ptr<Server>(new Server(std::move(config), std::move(loader), build));
}

Server::Server(ServerConfig config, ModelLoader loader, const BuildInfo& build)
    : config_(std::move(config)),
      prometheus_(std::make_shared<prometheus::Registry>()),
      metrics_(*prometheus_, build),
      registry_(config_, std::move(loader), *prometheus_, [this] { OnRegistryChange(); }),
      config_text_(FormatEffectiveConfig(config_)),
      readiness_(config_.health) {}

Server::~Server() {
  RequestDrain(/*lame_duck=*/false);
  Stop(milliseconds(0));
}

absl::Status Server::Start() {
  AFT_ASSIGN_OR_RETURN(grpc_, GrpcServer::Create(config_, registry_, metrics_, *prometheus_));
  AFT_RETURN_IF_ERROR(StartPages());
  AFT_RETURN_IF_ERROR(StartHttp());
  log::Info("server.listening", {{"address", address()},
                                 {"metrics_address", metrics_address_},
                                 {"http_address", http_address_}});
  const std::vector<MemoryPart> memory = registry_.Memory();
  log::Info(
      "server.memory",
      {{"planned", SumOf(memory)}, {"limit", MemoryLimit()}, {"parts", DescribeMemory(memory)}});
  registry_.StartLoading();
  watch_ = std::make_unique<Periodic>("aft-watch", kWatchInterval, [this] {
    registry_.CheckProgress();
    UpdateHealth();
    const int error = AcceptAgain();
    if (error == 0) return;
    if (const auto left_out = accept_failures_.Pass(std::chrono::steady_clock::now())) {
      log::Error("server.accept_failed",
                 {{"error", std::system_category().message(error)}, {"left_out", *left_out}});
    }
  });
  return absl::OkStatus();
}

absl::Status Server::StartPages() {
  const absl::string_view configured = config_.metrics_address;
  if (configured.empty()) return absl::OkStatus();
  pages_ = std::make_unique<HttpPages>(HttpPages::Pages{
      {"/",
       [] {
         return HttpPage{.status = 302, .headers = {{"Location", "status"}}};
       }},
      {"/healthz", [this] { return AlivePage(Report()); }},
      {"/metrics",
       [this] {
         return HttpPage{.content_type = kMetricsContentType, .body = MetricsText(Metrics())};
       }},
      {"/readyz", [this] { return ReadyPage(Report()); }},
      {"/status", [] { return StatusPage(); }},
      {"/status.json", [this] { return StatusJson(Report()); }},
  });
  auto created = HttpServer::Create(config_.metrics_address, *pages_);
  if (!created.ok()) {
    return absl::UnavailableError(absl::StrCat("metrics_address: ", created.status().message()));
  }
  pages_server_ = *std::move(created);
  metrics_address_ =
      absl::StrCat(configured.substr(0, configured.rfind(':')), ":", pages_server_->port());
  return absl::OkStatus();
}

absl::Status Server::StartHttp() {
  if (config_.http_address.empty()) return absl::OkStatus();
  door_ = std::make_unique<openai::Door>(config_.http, grpc_->calls(), grpc_->identity(),
                                         metrics_.version);
  const auto connections = static_cast<size_t>(config_.http.max_connections);
  HttpOptions options = {.connections = connections,
                         .address_connections = connections / 2,
                         .gives_way = false,
                         .keep_alive = true,
                         .header_bytes = size_t{16} << 10,
                         .body_bytes = static_cast<size_t>(config_.limits.max_message_bytes),
                         .patience = config_.limits.write_stall};
  if (const TlsFiles* files = grpc_->tls_files(); files != nullptr) {
    options.tls = [files] { return files->context(); };
  }
  auto created = HttpServer::Create(config_.http_address, *door_, options);
  if (!created.ok()) {
    return absl::UnavailableError(absl::StrCat("http_address: ", created.status().message()));
  }
  door_server_ = *std::move(created);
  const absl::string_view configured = config_.http_address;
  http_address_ =
      absl::StrCat(configured.substr(0, configured.rfind(':')), ":", door_server_->port());
  grpc_->OnClients([this] { door_->calls().CheckClients(grpc_->identity()); });
  return absl::OkStatus();
}

StatusReport Server::Report() const {
  static constexpr const char* kStates[] = {"starting", "ready", "draining", "stopped"};
  StatusReport report = {.version = metrics_.version,
                         .state = kStates[static_cast<size_t>(lifecycle())],
                         .ready = ready_,
                         .alive = alive_,
                         .started = started_,
                         .address = address(),
                         .memory = registry_.Memory(),
                         .memory_limit = MemoryLimit(),
                         .config = "",
                         .models = registry_.List()};
  MutexLock lock(mutex_);
  report.config = config_text_;
  return report;
}

MetricFamilies Server::Metrics() {
  SetMemoryMetrics();
  SetFileMetrics();
  return AllMetrics(prometheus_, ReportOf(registry_));
}

void Server::SetMemoryMetrics() {
  std::array<int64_t, kMemoryUses.size()> planned{};
  for (const MemoryPart& part : registry_.Memory()) {
    planned[static_cast<size_t>(part.use)] += part.bytes;
  }
  for (size_t i = 0; i < planned.size(); ++i) {
    metrics_.SetPlannedMemory(kMemoryUses[i], planned[i]);
  }
  metrics_.memory_there.Set(static_cast<double>(MemoryLimit()));
}

void Server::SetFileMetrics() {
  const TlsFiles* const tls = grpc_->tls_files();
  const ClientDirectory* const clients = grpc_->identity().directory();
  metrics_.SetFilesRejected("tls", tls != nullptr && tls->rejected());
  metrics_.SetFilesRejected("clients", clients != nullptr && clients->rejected());
  metrics_.SetFilesRejected("config", config_rejected_);
  if (tls != nullptr) metrics_.certificate_expires.Set(static_cast<double>(tls->expires()));
}

void Server::OnRegistryChange() {
  const std::optional<absl::Status> result = registry_.load_result();
  {
    MutexLock lock(mutex_);
    const bool ready = result.has_value() && result->ok();
    if (ready && lifecycle_ == Lifecycle::kStarting) lifecycle_ = Lifecycle::kReady;
    changed_.NotifyAll();
  }
  UpdateHealth();
}

void Server::UpdateHealth() {
  MutexLock health_lock(health_mutex_);
  if (grpc_ == nullptr) return;  // Start has failed
  const Lifecycle state = lifecycle();
  const bool may_serve = state == Lifecycle::kStarting || state == Lifecycle::kReady;
  const std::vector<ModelStatus> models = registry_.List();
  readiness_.Update(models, steady_clock::now());
  std::map<std::string, bool> serving;
  for (const ModelStatus& model : models) {
    serving[model.name] = may_serve && model.state == ModelState::kReady;
  }
  ready_ = state == Lifecycle::kReady && readiness_.ready();
  alive_ = readiness_.alive();
  grpc_->SetServing(ready_, serving, alive_);
  if (door_ != nullptr) door_->SetReady(ready_);
}

absl::Status Server::WaitReady() {
  std::optional<absl::Status> result;
  {
    MutexLock lock(mutex_);
    while (!(result = registry_.load_result()).has_value()) {
      if (drain_requested_) return absl::CancelledError("shutting down");
      changed_.Wait(mutex_);
    }
    if (drain_requested_) return absl::CancelledError("shutting down");
  }
  OnRegistryChange();  // health says so too when this returns, whichever thread was first
  return *result;
}

absl::Status Server::Reload(const ServerConfig& config) {
  AFT_RETURN_IF_ERROR(CheckReload(config_, config));
  std::string text = FormatEffectiveConfig(config);  // first: there may be no memory for it
  log::Init(*log::ParseLevel(config.log.level), *log::ParseFormat(config.log.format));
  grpc_->RefreshFiles();
  registry_.Rescan(config.repository);
  MutexLock lock(mutex_);
  config_text_.swap(text);
  return absl::OkStatus();
}

void Server::RequestDrain(bool lame_duck) {
  MutexLock lock(mutex_);
  lame_duck_ &= lame_duck;
  drain_requested_ = true;
  changed_.NotifyAll();
}

bool Server::Wait() {
  {
    MutexLock lock(mutex_);
    while (!drain_requested_) changed_.Wait(mutex_);
  }
  return Stop(config_.drain.grace);
}

bool Server::Drain() {
  RequestDrain();
  return Wait();
}

bool Server::Stop(milliseconds grace) {
  MutexLock stop_lock(stop_mutex_);
  milliseconds lame_duck{0};
  {
    MutexLock lock(mutex_);
    if (lifecycle_ == Lifecycle::kStopped) return clean_;
    if (lifecycle_ == Lifecycle::kReady && lame_duck_) lame_duck = config_.drain.lame_duck;
    lifecycle_ = Lifecycle::kDraining;
  }
  log::Info("server.draining", {{"lame_duck_ms", lame_duck.count()}, {"grace_ms", grace.count()}});
  if (door_server_ != nullptr) door_server_->BeginLameDuck();
  UpdateHealth();
  metrics_.draining.Set(1);  // only now: where the metric says so, no page says "ready"
  {
    MutexLock lock(mutex_);
    const auto until = steady_clock::now() + lame_duck;
    while (lame_duck_ && changed_.WaitUntil(mutex_, until)) continue;
  }
  const auto deadline = steady_clock::now() + grace;
  registry_.BeginDrain();
  if (grpc_ != nullptr) grpc_->BeginDrain(deadline + kFlushTime);
  if (door_server_ != nullptr) {
    door_->BeginDrain();
    door_server_->BeginDrain();
  }
  clean_ = registry_.Shutdown(deadline);
  if (door_server_ != nullptr) {
    door_->calls().WaitForNone(deadline + kFlushTime, [this] { door_server_->CloseConnections(); });
    grpc_->OnClients(nullptr);
    door_server_->Stop();
  }
  if (grpc_ != nullptr) grpc_->Shutdown(deadline + kFlushTime);
  watch_.reset();
  pages_server_.reset();
  {
    MutexLock lock(mutex_);
    lifecycle_ = Lifecycle::kStopped;
  }
  log::Info("server.stopped");
  return clean_;
}

Lifecycle Server::lifecycle() const {
  MutexLock lock(mutex_);
  return lifecycle_;
}

}  // namespace aft::server
