#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/progress.h"
#include "model/api/load.h"
#include "server/config/config.h"
#include "server/config/memory_plan.h"
#include "server/registry/loader_thread.h"
#include "server/registry/model_keeper.h"
#include "server/registry/model_table.h"
#include "server/registry/repository.h"
#include "server/registry/served_model.h"

namespace aft::server {

// Loads a model: aft::LoadModel, or a fake in tests. Is called on the loader thread.
using ModelLoader = std::function<absl::StatusOr<LoadedModel>(const LoadOptions&)>;

// Logs, every 5 seconds, how much of a model has been loaded. `config` is borrowed.
Progress LoadProgress(const ModelConfig& config,
                      std::function<Progress::Clock::time_point()> now = Progress::Clock::now);

// The models of the config and of its repository, each in one or several versions, and an engine
// for each version. They are loaded one after the other on one loader thread, at the start and on
// request. A model that fails, in loading or serving, is reported and not served; all others are.
//
// A version that is loaded at run time takes its place when it is ready. Requests that arrive from
// then on get it. Requests that hold the previous version continue with it, and it ends by the
// rules of ModelKeeper. Unless all new versions of a model load, no serving version is removed.
//
// Thread-safety: all methods may be called from any thread; none but Shutdown waits for a load.
class ModelRegistry final : public ModelTable {
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

  // The result of the loads at the start; not set until they have ended. OK if a model is ready, or
  // if the repository is empty; otherwise FAILED_PRECONDITION with the name and the reason of each
  // model.
  std::optional<absl::Status> load_result() const;

  // The memory of the machine that the server may take (server/config/memory_plan.h), loaded models
  // included.
  std::vector<MemoryPart> Memory() const;

  // The ages of every model by name, also of those that have left the repository.
  std::map<std::string, ModelAges> Ages() const;

  // A Done is called once with the result; on the loader thread, the keeper's or the caller's.
  using Done = std::function<void(const absl::Status&)>;
  // Whether an order is still wanted; called on the loader thread, before the order begins.
  using Wanted = std::function<bool()>;

  // Loads the versions of a model that should be served and are not loaded, or whose files have
  // changed, and retires the others. An order that has begun continues to its end. CANCELLED: it
  // was not wanted any more when its turn came; NOT_FOUND: no such model; RESOURCE_EXHAUSTED: too
  // many orders wait for the loader; UNAVAILABLE: the server is draining; otherwise the error of
  // the first version that did not load.
  void Load(const std::string& name, Done done, Wanted wanted = {});

  // Retires all versions of a model; `done` is called when they are destroyed. Errors as Load.
  void Unload(const std::string& name, Done done, Wanted wanted = {});

  // Replaces the rules of the repository at once, and orders to read it again: this loads new
  // versions, as Load does, and unloads models that are not in it any more. Models that an order
  // has unloaded stay unloaded. Only a drain refuses the order. REQUIRES: `repository` has the same
  // folder.
  void Rescan(const RepositoryConfig& repository);

  // The current value of RepositoryConfig::control.
  std::string control() const { return repository().control; }

  // Makes ready models draining: Acquire refuses them, and their engines finish the requests that
  // they have. Loading stops after the model in progress. Idempotent.
  void BeginDrain();

  // Calls BeginDrain, then waits for the engines; requests that still run at `deadline` are ended.
  // Waits for a load in progress. Returns false if an engine's thread is stuck: only _exit ends
  // such a thread; the destructor waits for it. Idempotent.
  bool Shutdown(TimePoint deadline);

  // Fails models whose step has taken too long. Must be called regularly.
  void CheckProgress();

 private:
  // These are called only on the loader thread, or before it starts.
  void LoadAll();
  // Finds a model of the config or of the repository, whose folder may be new.
  absl::StatusOr<Entry*> FindOrAdd(const std::string& name);
  // As FindOrAdd, for a folder of the repository. FAILED_PRECONDITION if the config has that model.
  absl::StatusOr<Entry*> FindOrAddFolder(const std::string& name);
  absl::StatusOr<std::vector<ModelConfig>> WantedVersions(const Entry& entry) const;
  absl::Status LoadModel(const std::string& name);
  absl::Status LoadVersions(Entry& entry);
  absl::Status LoadVersion(Entry& entry, const ModelConfig& config);
  absl::StatusOr<ModelHold> TryLoad(Entry& entry, const ModelConfig& config);
  void UnloadEntry(Entry& entry, bool stay, const std::shared_ptr<void>& until_gone);
  void ReadFolder();
  static void LogSkipped(const std::string& name, const absl::Status& why);
  void Retire(std::vector<ModelHold> models, const std::shared_ptr<void>& until_gone = nullptr);

  void Order(LoaderThread::Task task, Wanted wanted);
  RepositoryConfig repository() const;

  const std::vector<MemoryPart> memory_;  // without those of models
  const LimitsConfig limits_;
  const SchedulingConfig scheduling_;
  const HealthConfig health_;
  const DrainConfig drain_;
  const ModelLoader loader_;
  prometheus::Registry& prometheus_;
  const std::function<void()> on_change_;
  // Whether the repository could be read at the start, and why models in it could not; constant.
  absl::Status scanned_;
  std::vector<std::string> skipped_;

  mutable Mutex mutex_;
  RepositoryConfig repository_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> load_result_ ABSL_GUARDED_BY(mutex_);

  ModelKeeper keeper_;
  LoaderThread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
