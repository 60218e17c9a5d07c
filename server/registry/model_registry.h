#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "model/api/load.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/config/memory_plan.h"
#include "server/observability/metrics.h"
#include "server/registry/model_keeper.h"
#include "server/registry/repository.h"
#include "server/registry/served_model.h"

namespace aft::server {

// aft::LoadModel, or a fake. Called on the loader thread.
using ModelLoader = std::function<absl::StatusOr<LoadedModel>(const LoadOptions&)>;

using ModelState = ModelMetrics::State;

struct VersionStatus {
  std::string version;
  ModelState state = ModelState::kLoading;
  std::string error;         // why it could not be loaded, or loaded again, or why it failed
  uint64_t fingerprint = 0;  // ModelInfo's; 0: it is not loaded
  // Of what it has executed since it was loaded.
  uint64_t steps = 0;
  bool encodes = false;
  std::map<size_t, BatchCounts::Count> batches{};
};

// What ModelService reports: of a model, the version that a request gets which names none.
struct ModelStatus : VersionStatus {
  std::string name;
  int32_t slots = 0;  // requests that run at once: rows of a batch, for an encoder
  // Known once loaded.
  std::optional<ModelInfo> info;
  EngineLoad load{};
  int64_t vector_width = 0;             // 0: a language model
  std::vector<VersionStatus> versions;  // all there are, the newest first
};

// The longest of all versions of a model that are in memory and have not failed, those that end
// their last streams too.
struct ModelAges {
  Duration oldest_waiting{};  // how long a request waits; 0: none does
  Duration since_step{};  // of those that run requests; if none does, of the version of ModelStatus
};

// The models of the config and of its repository, each in one or several versions, and an engine
// for each version. They are loaded one after the other on one loader thread, at the start and when
// somebody asks for it. What fails, loading or serving, is reported and not served; all else is.
//
// A version that is loaded at run time takes its place when it is ready: requests that come from
// then on get it, and those that hold the version before go on with that, which ends by the rules
// of ModelKeeper. Of a model whose new versions do not all load, none that serves is taken away.
//
// Thread-safety: all methods may be called from any thread; none but Shutdown waits for a load.
class ModelRegistry {
 public:
  // REQUIRES: `config` is valid. `metrics` must outlive the registry. `on_change` is called, on the
  // thread that made the change and with no lock held, whenever a model's state or load_result has
  // changed. Reads the repository's folders.
  ModelRegistry(const ServerConfig& config, ModelLoader loader, prometheus::Registry& metrics,
                std::function<void()> on_change);
  // Shuts down with no grace; waits for a load in progress, for the last hold on a model, and for
  // every engine's thread.
  ~ModelRegistry();

  // REQUIRES: called at most once.
  void StartLoading();

  // Nothing while models of the start are still to be loaded. Then OK when one is ready, or the
  // repository is empty, else FAILED_PRECONDITION with the name and the reason of each.
  std::optional<absl::Status> load_result() const;

  // PERMISSION_DENIED unless the client may use the model, whether there is one of that name or
  // not.
  static absl::Status CheckMayUse(const Client& client, absl::string_view name);

  // The model of that name; an empty name means the only one that the client may use. An empty
  // version means the newest that is ready. As CheckMayUse, before all else; INVALID_ARGUMENT
  // (empty name with several models), NOT_FOUND (names the models that the client may use, or their
  // versions), UNAVAILABLE (loading, unloaded, failed, draining).
  absl::StatusOr<ModelHold> Acquire(const Client& client, absl::string_view name,
                                    absl::string_view version = {}) const;

  // The same for who cannot know yet which version is wanted: NOT_FOUND also when there are
  // several.
  absl::StatusOr<ModelHold> AcquireOnly(const Client& client, absl::string_view name) const;

  // The version of the same model whose ModelInfo::fingerprint is that, if one is ready; else
  // `model` itself.
  ModelHold Matching(const ModelHold& model, uint64_t fingerprint) const;

  // All, for operators.
  std::vector<ModelStatus> List() const;
  // Those that the client may use, as it may see them (ToldTo).
  std::vector<ModelStatus> List(const Client& client) const;

  // An error as the client may see it: an admin as it is, others without the server's paths.
  std::string ToldTo(const Client& client, absl::string_view error) const;

  // What the server may take of the machine's memory (server/config/memory_plan.h), with the models
  // that are loaded.
  std::vector<MemoryPart> Memory() const;

  // By name, of every model in the list.
  std::map<std::string, ModelAges> Ages() const;

  // Of that version, or of the one that Acquire would give, as the client may see it. Errors as
  // Acquire.
  absl::StatusOr<ModelStatus> Get(const Client& client, absl::string_view name,
                                  absl::string_view version = {}) const;

  // Metrics of that model in whatever state, an empty name being that of the only one; nullptr when
  // there is none of that name. They live as long as the registry.
  ModelMetrics* FindMetrics(absl::string_view name) const;

  // Hears how it went, once; on the loader thread, the keeper's or the caller's.
  using Done = std::function<void(const absl::Status&)>;
  // Whether an order is still wanted; asked on the loader thread, before it begins.
  using Wanted = std::function<bool()>;

  // Loads the versions of a model that are to be served and are not, or whose files have changed,
  // and retires the others. Once begun it continues to its end. CANCELLED: it was not wanted any
  // more when its turn came; NOT_FOUND: no such model; else
  // the error of the first version that did not load; RESOURCE_EXHAUSTED: too many wait for the
  // loader; UNAVAILABLE: the server is draining.
  void Load(const std::string& name, Done done, Wanted wanted = {});

  // Retires all versions of a model; done when they are gone. Errors as Load.
  void Unload(const std::string& name, Done done, Wanted wanted = {});

  // Reads the repository again, by new rules: loads what is new, as Load does, and unloads what is
  // not there any more. What was unloaded stays so. Of `repository` the folder must be the same.
  void Rescan(const RepositoryConfig& repository);

  // RepositoryConfig::control, as of now.
  std::string control() const { return repository().control; }

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
  struct Version {
    ModelState state = ModelState::kLoading;
    absl::Status error;
    ModelHold model;  // null: not loaded
    std::string stamp;
  };
  struct Entry {
    Entry(std::string n, prometheus::Registry& registry)
        : name(std::move(n)), metrics(registry, name) {}

    const std::string name;
    ModelMetrics metrics;
    std::optional<ModelConfig> config;  // of the config's models
    // Guarded by the registry's mutex_. Only the loader thread adds and removes versions.
    std::map<std::string, Version, NewestFirst> versions;
    bool unloaded = false;  // and to stay so
  };
  using NamedVersion = std::pair<const std::string, Version>;
  // Does its work, or hears why it may not.
  using Task = std::function<void(const absl::Status& may)>;

  // On the loader thread, or before there is one.
  void RunLoader();
  void LoadAll();
  Entry& AddEntry(const std::string& name);
  // Of the config or, found now, of the repository.
  absl::StatusOr<Entry*> FindEntry(const std::string& name);
  absl::StatusOr<std::vector<ModelConfig>> WantedVersions(const Entry& entry) const;
  // These are to be loaded. False: they were known to be.
  bool Announce(Entry& entry, const std::vector<ModelConfig>& wanted);
  absl::Status LoadModel(const std::string& name);
  absl::Status LoadVersions(Entry& entry);
  void FailLoading(Entry& entry, const absl::Status& error);
  absl::Status LoadVersion(Entry& entry, const ModelConfig& config);
  absl::StatusOr<ModelHold> TryLoad(Entry& entry, const ModelConfig& config);
  bool IsLoaded(const Entry& entry, const ModelConfig& config, const std::string& stamp) const;
  absl::Status Place(Entry& entry, ModelHold model, const std::string& stamp);
  void RetireOthers(Entry& entry, const std::vector<ModelConfig>& wanted);
  void UnloadEntry(Entry& entry, bool stay, const std::shared_ptr<void>& until_gone);
  void ReadFolder();
  static void LogSkipped(const std::string& name, const absl::Status& why);
  void Retire(std::vector<ModelHold> models, const std::shared_ptr<void>& until_gone = nullptr);

  void Enqueue(Task task, Wanted wanted = {});
  absl::Status SummarizeLoads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnFailed(Entry& entry, const ServedModel& model, const std::string& reason);
  RepositoryConfig repository() const;

  // With the lock.
  absl::StatusOr<Entry*> Find(const Client& client, absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: there is none.
  Entry* FindNamed(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Publish(Entry& entry);
  // Null: there is no version.
  static const NamedVersion* Best(const Entry& entry);
  // An empty one: the best.
  static absl::StatusOr<const NamedVersion*> Pick(const Entry& entry, absl::string_view version);
  static ModelStatus Describe(const Entry& entry, const NamedVersion* wanted);
  ModelStatus DescribeTo(const Client& client, const Entry& entry, const NamedVersion* wanted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Told(const Client& client, absl::string_view error) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<MemoryPart> memory_;  // without models
  const LimitsConfig limits_;
  const SchedulingConfig scheduling_;
  const HealthConfig health_;
  const DrainConfig drain_;
  const ModelLoader loader_;
  prometheus::Registry& prometheus_;
  const std::function<void()> on_change_;

  mutable Mutex mutex_;
  RepositoryConfig repository_ ABSL_GUARDED_BY(mutex_);
  absl::Status scanned_;  // whether the repository could be read at the start; constant
  // Entries stay where they are, and none goes.
  std::vector<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> load_result_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar tasks_changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);

  ModelKeeper keeper_;  // behind the entries: what it ends may still report to them

  Mutex join_mutex_;  // one thread joins
  std::thread loader_thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server
