#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/registry/chat_template.h"
#include "server/registry/repository.h"
#include "server/registry/served_model.h"

namespace aft::server {

using ModelState = ModelMetrics::State;

struct VersionStatus {
  std::string version;
  ModelState state = ModelState::kLoading;
  std::string error;         // why it could not be loaded, or reloaded, or why it failed
  uint64_t fingerprint = 0;  // ModelInfo's; 0: not loaded
  // The steps and batches that it has executed since it was loaded.
  uint64_t steps = 0;
  bool encodes = false;
  std::map<size_t, BatchCounts::Count> batches{};
};

// The status of a model, as ModelService reports it. The inherited fields describe the version that
// a request without a version gets.
struct ModelStatus : VersionStatus {
  std::string name;
  int32_t slots = 0;  // requests that run at once; for an encoder, rows of a batch
  // This is known once the model is loaded.
  std::optional<ModelInfo> info;
  EngineLoad load{};
  int64_t device_memory_used = 0;  // of its GPU, at its last step; 0: no step has run on a GPU
  int64_t device_memory_total = 0;
  int64_t vector_width = 0;  // of the vectors that Encode gives
  ChatTemplate chat{};       // of a language model
  std::vector<std::string> initial_states;
  std::vector<VersionStatus> versions;  // all versions, the newest first
};

// The longest times among all versions of a model that are in memory and have not failed, including
// those that only end their last streams.
struct ModelAges {
  Duration oldest_waiting{};  // of a waiting request; 0: none waits
  Duration since_step{};  // of versions that run requests; without any, of ModelStatus's version
};

// The models, their versions, and the states of the versions. Calls look them up here;
// ModelRegistry, which derives from the table, changes them.
//
// Thread-safety: all methods may be called from any thread; none waits for a load.
class ModelTable {
 public:
  // `folder` is that of the repository; empty: there is none. `metrics` must outlive the table.
  ModelTable(std::string folder, prometheus::Registry& metrics)
      : folder_(std::move(folder)), prometheus_(metrics) {}

  // PERMISSION_DENIED unless the client may use the model, whether or not there is one of that
  // name.
  static absl::Status CheckMayUse(const Client& client, absl::string_view name);

  // The model of that name; an empty name means the only model that the client may use. An empty
  // version means the newest one that is ready. Errors: first those of CheckMayUse;
  // INVALID_ARGUMENT (empty name with several models), NOT_FOUND (lists the models that the client
  // may use, or the versions), UNAVAILABLE (loading, unloaded, failed, draining).
  absl::StatusOr<ModelHold> Acquire(const Client& client, absl::string_view name,
                                    absl::string_view version = {}) const;

  // Like Acquire, for a caller that has no request for the model. It is not counted as refused.
  absl::StatusOr<ModelHold> Look(const Client& client, absl::string_view name,
                                 absl::string_view version = {}) const;

  // Like Acquire, for a caller that does not know the wanted version yet. NOT_FOUND also if there
  // are several versions.
  absl::StatusOr<ModelHold> AcquireOnly(const Client& client, absl::string_view name) const;

  // The version of the same model with that ModelInfo::fingerprint if it is ready, otherwise
  // `model` itself.
  ModelHold Matching(const ModelHold& model, uint64_t fingerprint) const;

  // All models, for operators. Models whose folders have left the repository are in no list.
  std::vector<ModelStatus> List() const;
  // The models that the client may use, as it may see them (ToldTo).
  std::vector<ModelStatus> List(const Client& client) const;

  // Returns an error as the client may see it: unchanged for an admin, without the server's paths
  // for all others.
  std::string ToldTo(const Client& client, absl::string_view error) const;

  // The status of that version, or of the one that Acquire would give, as the client may see it.
  // Errors as Acquire.
  absl::StatusOr<ModelStatus> Get(const Client& client, absl::string_view name,
                                  absl::string_view version = {}) const;

  // The metrics of the model of that name, whatever its state. An empty name means the only model
  // that the client may use, as for Acquire. Null if there is no such model. They live as long as
  // the registry.
  ModelMetrics* FindMetrics(const Client& client, absl::string_view name) const;

 protected:
  ~ModelTable() = default;

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
    std::optional<ModelConfig> config;  // of a model in the config
    // Guarded by the table's mutex_. Only the loader thread adds and removes versions.
    std::map<std::string, Version, NewestFirst> versions;
    bool unloaded = false;  // an order unloaded it, so it stays unloaded until Allow
    bool gone = false;      // its folder has left the repository
  };
  using NamedVersion = std::pair<const std::string, Version>;

  // Adds an entry, which stays at its address, and is never removed. REQUIRES: the name is new.
  Entry& AddEntry(const std::string& name);
  // Returns null if there is none.
  Entry* FindEntry(absl::string_view name) const;
  std::vector<Entry*> Entries() const;

  // Adds the versions that will be loaded. Returns false if all of them are known already, or if
  // the table drains. Other versions that are ready have no error any more.
  bool Announce(Entry& entry, const std::vector<ModelConfig>& wanted);
  // Lets the model be served again, even if it was unloaded.
  void Allow(Entry& entry);
  // Fails the announced versions, because the wanted versions cannot be found out. Versions that
  // are ready stay so, with this error.
  void FailLoading(Entry& entry, const absl::Status& error);
  void FailVersion(Entry& entry, const std::string& version, const absl::Status& error);
  // Whether the version is loaded from the current config and folder (FolderStamp). If so, it has
  // no error any more: the config or the files that could not be used were taken back.
  bool KeepLoaded(Entry& entry, const ModelConfig& config, const std::string& stamp);
  // Gives requests `model` from now on. Returns the model that it replaces, if any. UNAVAILABLE:
  // the table drains.
  absl::StatusOr<ModelHold> Place(Entry& entry, ModelHold model, const std::string& stamp);
  // Removes the versions that are not in `wanted`; those in memory only if `loaded`. Returns their
  // models.
  std::vector<ModelHold> TakeOthers(Entry& entry, const std::vector<ModelConfig>& wanted,
                                    bool loaded);
  // Unloads all versions and returns their models. `stay`: they stay unloaded until Allow;
  // otherwise the folder is gone, and the model leaves the lists.
  std::vector<ModelHold> TakeAll(Entry& entry, bool stay);
  // Records that a loaded model has failed, so that it does not serve any more.
  void Fail(Entry& entry, const ServedModel& model, const std::string& reason);
  // Lists the models of these names, which are the folders of the repository, again. Returns the
  // models of the repository that are listed and have no folder any more.
  std::vector<Entry*> Relist(const std::vector<std::string>& names);
  // Whether a version of one of them is in memory.
  bool AnyLoaded(const std::vector<Entry*>& entries) const;
  // Whether the repository may load it again without an order.
  bool MayReload(const Entry& entry) const;
  // The name and the reason of each model if all of them failed to load; otherwise nothing.
  std::optional<std::vector<std::string>> LoadFailures() const;
  // From now on Acquire refuses all models. Returns false if this was so before. The metrics show
  // it after PublishAll.
  bool Drain();
  void PublishAll();
  bool IsDraining() const;
  // Releases all models.
  void LetGo();
  // The ages of every model by name, listed or not. `held`: all models in memory.
  std::map<std::string, ModelAges> AgesOf(const std::vector<ModelHold>& held) const;

 private:
  absl::StatusOr<Entry*> Find(const Client& client, absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null if there is none.
  Entry* FindNamed(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ModelHold> FindReady(const Client& client, absl::string_view name,
                                      absl::string_view version, bool counts) const;
  static void Publish(Entry& entry);
  // The version that a request without a version gets. Returns null if there is no version.
  static const NamedVersion* Best(const Entry& entry);
  // An empty version means the best one.
  static absl::StatusOr<const NamedVersion*> Pick(const Entry& entry, absl::string_view version);
  static ModelStatus Describe(const Entry& entry, const NamedVersion* wanted);
  ModelStatus DescribeTo(const Client& client, const Entry& entry, const NamedVersion* wanted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Told(const Client& client, absl::string_view error) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string folder_;
  prometheus::Registry& prometheus_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aft::server
