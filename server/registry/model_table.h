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
  // What it has executed since it was loaded.
  uint64_t steps = 0;
  bool encodes = false;
  std::map<size_t, BatchCounts::Count> batches{};
};

// What ModelService reports of a model. Its own status is that of the version that a request
// without a version gets.
struct ModelStatus : VersionStatus {
  std::string name;
  int32_t slots = 0;  // requests that run at once; for an encoder, rows of a batch
  // This is known once the model is loaded.
  std::optional<ModelInfo> info;
  EngineLoad load{};
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

// Which models there are, which versions of each, and in which states these are. Calls look them up
// here; ModelRegistry, which derives from the table, changes them.
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

  // The model of that name; an empty name means the only one that the client may use. An empty
  // version means the newest that is ready. Errors as CheckMayUse, before all others;
  // INVALID_ARGUMENT (empty name with several models), NOT_FOUND (names the models that the client
  // may use, or their versions), UNAVAILABLE (loading, unloaded, failed, draining).
  absl::StatusOr<ModelHold> Acquire(const Client& client, absl::string_view name,
                                    absl::string_view version = {}) const;

  // Like Acquire, for a caller that does not know the wanted version yet: NOT_FOUND also when there
  // are several versions.
  absl::StatusOr<ModelHold> AcquireOnly(const Client& client, absl::string_view name) const;

  // The version of the same model with that ModelInfo::fingerprint, if one is ready; else `model`
  // itself.
  ModelHold Matching(const ModelHold& model, uint64_t fingerprint) const;

  // All models, for operators.
  std::vector<ModelStatus> List() const;
  // The models that the client may use, as it may see them (ToldTo).
  std::vector<ModelStatus> List(const Client& client) const;

  // An error as the client may see it: for an admin unchanged, for others without the server's
  // paths.
  std::string ToldTo(const Client& client, absl::string_view error) const;

  // The status of that version, or of the one that Acquire would give, as the client may see it.
  // Errors as Acquire.
  absl::StatusOr<ModelStatus> Get(const Client& client, absl::string_view name,
                                  absl::string_view version = {}) const;

  // Metrics of the model of that name in any state; an empty name means the only model. nullptr:
  // there is no such model. They live as long as the registry.
  ModelMetrics* FindMetrics(absl::string_view name) const;

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
    bool unloaded = false;  // and to stay so
  };
  using NamedVersion = std::pair<const std::string, Version>;

  // Adds an entry, which stays at its address, and is never removed. REQUIRES: the name is new.
  Entry& AddEntry(const std::string& name);
  // Returns null if there is none.
  Entry* FindEntry(absl::string_view name) const;
  std::vector<Entry*> Entries() const;

  // These versions are to be loaded. False: this was known already, or the table drains.
  bool Announce(Entry& entry, const std::vector<ModelConfig>& wanted);
  // The model may be served again, even if it was unloaded.
  void Allow(Entry& entry);
  // The versions that were to be loaded are not there any more.
  void FailLoading(Entry& entry, const absl::Status& error);
  void FailVersion(Entry& entry, const std::string& version, const absl::Status& error);
  // Whether it is loaded as the config and the folder (FolderStamp) are now.
  bool IsLoaded(const Entry& entry, const ModelConfig& config, const std::string& stamp) const;
  // Requests get `model` from here on. Returns the version that had its place; UNAVAILABLE: the
  // table drains.
  absl::StatusOr<ModelHold> Place(Entry& entry, ModelHold model, const std::string& stamp);
  // Removes the versions that are not wanted. Returns their models.
  std::vector<ModelHold> TakeOthers(Entry& entry, const std::vector<ModelConfig>& wanted);
  // Unloads all versions and returns their models. `stay`: they stay unloaded until Allow.
  std::vector<ModelHold> TakeAll(Entry& entry, bool stay);
  // A model that has been loaded has failed, and does not serve any more.
  void Fail(Entry& entry, const ServedModel& model, const std::string& reason);
  // The repository's models that are to be served, but whose names are not in the list.
  std::vector<Entry*> Unlisted(const std::vector<std::string>& names) const;
  // Whether the repository may load it again without an order.
  bool MayReload(const Entry& entry) const;
  // Name and reason of each model, if every one has failed to load; else nothing.
  std::optional<std::vector<std::string>> LoadFailures() const;
  // Gives out no more models. False: it was so before.
  bool Drain();
  bool IsDraining() const;
  // Releases all models.
  void LetGo();
  // The ages of every model in the list, by name. `held`: all models in memory.
  std::map<std::string, ModelAges> AgesOf(const std::vector<ModelHold>& held) const;

 private:
  absl::StatusOr<Entry*> Find(const Client& client, absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null if there is none.
  Entry* FindNamed(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Publish(Entry& entry);
  // Returns null if there is no version.
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
