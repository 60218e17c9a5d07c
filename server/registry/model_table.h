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
#include "server/registry/repository.h"
#include "server/registry/served_model.h"

namespace aft::server {

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
  int64_t vector_width = 0;             // of what Encode gives
  std::vector<VersionStatus> versions;  // all there are, the newest first
};

// The longest of all versions of a model that are in memory and have not failed, those that end
// their last streams too.
struct ModelAges {
  Duration oldest_waiting{};  // how long a request waits; 0: none does
  Duration since_step{};  // of those that run requests; if none does, of the version of ModelStatus
};

// Which models there are, which versions of each, and in which states these are: what calls look
// up. ModelRegistry, which is one, changes it.
//
// Thread-safety: all methods may be called from any thread; none waits for a load.
class ModelTable {
 public:
  // `folder`: of the repository; empty: there is none. `metrics` must outlive the table.
  ModelTable(std::string folder, prometheus::Registry& metrics)
      : folder_(std::move(folder)), prometheus_(metrics) {}

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

  // Of that version, or of the one that Acquire would give, as the client may see it. Errors as
  // Acquire.
  absl::StatusOr<ModelStatus> Get(const Client& client, absl::string_view name,
                                  absl::string_view version = {}) const;

  // Metrics of that model in whatever state, an empty name being that of the only one; nullptr when
  // there is none of that name. They live as long as the registry.
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
    std::optional<ModelConfig> config;  // of the config's models
    // Guarded by the table's mutex_. Only the loader thread adds and removes versions.
    std::map<std::string, Version, NewestFirst> versions;
    bool unloaded = false;  // and to stay so
  };
  using NamedVersion = std::pair<const std::string, Version>;

  // Of which there is none of that name. It stays where it is, and never goes.
  Entry& AddEntry(const std::string& name);
  // Null: there is none.
  Entry* FindEntry(absl::string_view name) const;
  std::vector<Entry*> Entries() const;

  // These are to be loaded. False: they were known to be, or the table drains.
  bool Announce(Entry& entry, const std::vector<ModelConfig>& wanted);
  // It is to be served again, should it have been unloaded.
  void Allow(Entry& entry);
  // Versions that were to be loaded are not there any more.
  void FailLoading(Entry& entry, const absl::Status& error);
  void FailVersion(Entry& entry, const std::string& version, const absl::Status& error);
  // As the config and the folder (FolderStamp) have it now.
  bool IsLoaded(const Entry& entry, const ModelConfig& config, const std::string& stamp) const;
  // Requests get it from here on. The version that had its place; UNAVAILABLE: the table drains.
  absl::StatusOr<ModelHold> Place(Entry& entry, ModelHold model, const std::string& stamp);
  // Models of versions that are not wanted; the versions go.
  std::vector<ModelHold> TakeOthers(Entry& entry, const std::vector<ModelConfig>& wanted);
  // Models of all versions, which are unloaded then. `stay`: until Allow.
  std::vector<ModelHold> TakeAll(Entry& entry, bool stay);
  // A model that has been loaded serves no more.
  void Fail(Entry& entry, const ServedModel& model, const std::string& reason);
  // Of the repository's models that are to be served, those whose names are not in the list.
  std::vector<Entry*> Unlisted(const std::vector<std::string>& names) const;
  // The repository may load it again without an order.
  bool MayReload(const Entry& entry) const;
  // Name and reason of each model, where every one has failed to load; else nothing.
  std::optional<std::vector<std::string>> LoadFailures() const;
  // No model is given out any more. False: it was so before.
  bool Drain();
  bool IsDraining() const;
  // Holds no model any more.
  void LetGo();
  // By name, of every model in the list. `held`: all that are in memory.
  std::map<std::string, ModelAges> AgesOf(const std::vector<ModelHold>& held) const;

 private:
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

  const std::string folder_;
  prometheus::Registry& prometheus_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aft::server
