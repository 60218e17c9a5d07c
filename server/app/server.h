#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/periodic.h"
#include "server/api/openai/door.h"
#include "server/app/grpc_server.h"
#include "server/app/status_page.h"
#include "server/config/config.h"
#include "server/http/http_pages.h"
#include "server/http/http_server.h"
#include "server/observability/metrics.h"
#include "server/observability/metrics_page.h"
#include "server/observability/rate_limit.h"
#include "server/registry/model_registry.h"
#include "server/registry/readiness.h"

namespace aft::server {

// Starting: the port is open, health is NOT_SERVING, Generate is UNAVAILABLE. Ready: loading has
// ended, and at least one model serves or the repository is empty; health also depends on
// health.readiness. Draining: see Wait. A server never returns to an earlier state.
enum class Lifecycle { kStarting, kReady, kDraining, kStopped };

// The whole service: models and their engines, gRPC, HTTP, and the pages of the metrics port. It
// makes and connects all parts, and does not know flags, signals and exit codes.
//
// Thread-safety: all methods may be called from any thread after Start has returned.
class Server {
 public:
  // INVALID_ARGUMENT names the field of the config. RESOURCE_EXHAUSTED lists all budgets if
  // together they exceed the memory of the machine. `build` is for the metrics.
  static absl::StatusOr<std::unique_ptr<Server>> Create(ServerConfig config, ModelLoader loader,
                                                        const BuildInfo& build);
  // Stops at once: running requests end with UNAVAILABLE. Waits for every model's thread.
  ~Server();

  // Opens the ports and starts to load the models. UNAVAILABLE names the address that cannot be
  // used. REQUIRES: called once.
  absl::Status Start();

  // Waits until loading has ended. FAILED_PRECONDITION if no model is ready then (names each model
  // and the reason), CANCELLED if a drain was requested before that.
  absl::Status WaitReady();

  // Switches to `config` if CheckReload allows it. Also reads the clients and the repository again;
  // models of the repository load in the background. After an error nothing has changed.
  absl::Status Reload(const ServerConfig& config);

  // Says whether the newest config could not be put in force, for the metrics.
  void SetConfigRejected(bool rejected) { config_rejected_ = rejected; }

  // Asks for the drain and returns at once. If `lame_duck` is false, the first stage is left out,
  // or ends now.
  void RequestDrain(bool lame_duck = true);

  // Waits until a drain is requested, carries it out and returns when the server has stopped:
  //   1. health turns NOT_SERVING; requests are still accepted for drain.lame_duck, and over HTTP
  //      each answer ends its connection;
  //   2. the gRPC port is closed and clients are told to go elsewhere; requests that are new, or
  //      wait for a slot, end with UNAVAILABLE, and so do resumable streams, which are handed over;
  //      other running ones have drain.grace to finish and to be read;
  //   3. the rest ends with UNAVAILABLE.
  // Returns false if the thread of a failed model is stuck: the process must then end by _exit.
  bool Wait();

  // RequestDrain and Wait.
  bool Drain();

  Lifecycle lifecycle() const;

  // The metrics that the page shows.
  MetricFamilies Metrics();

  // host:port as bound. The metrics and HTTP addresses are empty if the config does not set them.
  std::string address() const { return grpc_->address(); }
  std::string metrics_address() const { return metrics_address_; }
  std::string http_address() const { return http_address_; }

 private:
  Server(ServerConfig config, ModelLoader loader, const BuildInfo& build);

  absl::Status StartPages();
  absl::Status StartHttp();
  StatusReport Report() const;
  void SetMemoryMetrics();
  void SetFileMetrics();
  void OnRegistryChange();
  void UpdateHealth();
  bool Stop(std::chrono::milliseconds grace);

  const ServerConfig config_;  // at the start; fields that Reload can change are not read from it
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  const std::shared_ptr<prometheus::Registry> prometheus_;
  ServerMetrics metrics_;
  ModelRegistry registry_;
  std::unique_ptr<openai::Door> door_;
  std::unique_ptr<HttpServer> door_server_;  // stopped before gRPC's end, gone after its threads
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpPages> pages_;
  std::unique_ptr<HttpServer> pages_server_;  // destroyed before the objects that the pages show
  std::string metrics_address_;
  std::string http_address_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool drain_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool lame_duck_ ABSL_GUARDED_BY(mutex_) = true;    // may be part of the drain
  std::string config_text_ ABSL_GUARDED_BY(mutex_);  // of the config in force
  Lifecycle lifecycle_ ABSL_GUARDED_BY(mutex_) = Lifecycle::kStarting;

  Mutex health_mutex_;  // one thread computes and publishes health
  Readiness readiness_ ABSL_GUARDED_BY(health_mutex_);
  std::atomic<bool> ready_{false};  // the values of gRPC's health, for the pages
  std::atomic<bool> alive_{true};
  std::atomic<bool> config_rejected_{false};

  RateLimit accept_failures_{1};  // of log lines
  // Looks for models that are stuck, measures for how long a model has failed, and lets gRPC accept
  // connections again after an error.
  std::unique_ptr<Periodic> watch_;

  Mutex stop_mutex_;                                // one thread stops the server
  bool clean_ ABSL_GUARDED_BY(stop_mutex_) = true;  // no thread is stuck
};

}  // namespace aft::server
