#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "model/api/load.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/engine/encode_engine.h"
#include "server/engine/generate_engine.h"
#include "server/observability/metrics.h"

namespace aft::server {

// aft::LoadModel, or a fake. Called on the loader thread.
using ModelLoader = std::function<absl::StatusOr<LoadedModel>(const LoadOptions&)>;

using ModelState = ModelMetrics::State;

// A model that was loaded: what a request needs of it.
struct ServedModel {
  ModelConfig config;
  ModelInfo info;
  int64_t vector_width = 0;  // of an encoder
  std::shared_ptr<const Tokenizer> tokenizer;
  // Exactly one is there.
  std::unique_ptr<GenerateEngine> generate;  // of a language model
  std::unique_ptr<EncodeEngine> encode;      // of an encoder

  RequestLoop& engine() const {
    return generate != nullptr ? static_cast<RequestLoop&>(*generate) : *encode;
  }
};

// What ModelService reports.
struct ModelStatus {
  std::string name;
  std::string version;
  ModelState state = ModelState::kLoading;
  std::string error;  // why it could not be loaded, or why it failed
  int32_t slots = 0;  // requests that run at once: rows of a batch, for an encoder
  // Known once loaded.
  std::optional<ModelInfo> info;
  EngineLoad load;
  int64_t vector_width = 0;  // 0: a language model
};

// Loads the configured models, one after the other on one loader thread, and owns an engine for
// each. A model that fails, loading or serving, is reported and not served; the others are.
//
// Thread-safety: all methods may be called from any thread; Acquire, List and Get never wait for
// loading.
class ModelRegistry {
 public:
  // REQUIRES: `config` is valid. `metrics` must outlive the registry. `on_change` is called, on the
  // thread that made the change and with no lock held, whenever a model's state or load_result has
  // changed.
  ModelRegistry(const ServerConfig& config, ModelLoader loader, prometheus::Registry& metrics,
                std::function<void()> on_change);
  // Shuts down with no grace; waits for a load in progress, and for every engine's thread.
  ~ModelRegistry();

  // REQUIRES: called at most once.
  void StartLoading();

  // Nothing while models are still to be loaded. Then OK when one is ready, else
  // FAILED_PRECONDITION with the name and the reason of each.
  std::optional<absl::Status> load_result() const;

  // The model of that name; an empty name means the only one there is. INVALID_ARGUMENT (empty name
  // with several models), NOT_FOUND (names the models there are), UNAVAILABLE (loading, failed,
  // draining).
  absl::StatusOr<std::shared_ptr<const ServedModel>> Acquire(absl::string_view name) const;

  std::vector<ModelStatus> List() const;

  // NOT_FOUND names the models there are.
  absl::StatusOr<ModelStatus> Get(absl::string_view name) const;

  // Metrics of that model in whatever state, with Acquire's rule for an empty name; nullptr when
  // there is none of that name. They live as long as the registry.
  ModelMetrics* FindMetrics(absl::string_view name);

  // Ready models turn draining: Acquire refuses them, their engines finish what they have. Loading
  // stops after the model in progress. Idempotent.
  void BeginDrain();

  // BeginDrain, then waits for the engines; requests that still run at `deadline` are ended. A load
  // in progress is waited for. False when an engine's thread is stuck: only _exit ends that; the
  // destructor waits for it. Idempotent.
  bool Shutdown(TimePoint deadline);

  // To be called now and then: models whose step has taken too long fail.
  void CheckProgress();

 private:
  struct Entry {
    Entry(ModelConfig c, prometheus::Registry& registry)
        : config(std::move(c)), metrics(registry, config.name) {}

    const ModelConfig config;
    ModelMetrics metrics;
    // Guarded by the registry's mutex_.
    ModelState state = ModelState::kLoading;
    absl::Status error;
    std::shared_ptr<const ServedModel> model;
  };

  void LoadAll();
  absl::Status SummarizeLoads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Load(Entry& entry);
  absl::StatusOr<std::shared_ptr<const ServedModel>> TryLoad(Entry& entry);
  void OnFailed(Entry& entry, const std::string& reason);
  std::vector<std::shared_ptr<const ServedModel>> Loaded() const;
  void SetState(Entry& entry, ModelState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Entry*> Find(absl::string_view name) const;
  ModelStatus Describe(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LimitsConfig limits_;
  const SchedulingConfig scheduling_;
  const HealthConfig health_;
  const ModelLoader loader_;
  const std::function<void()> on_change_;
  const std::vector<std::unique_ptr<Entry>> entries_;  // the vector itself never changes

  mutable Mutex mutex_;
  std::optional<absl::Status> load_result_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;  // one thread joins
  std::thread loader_thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server
