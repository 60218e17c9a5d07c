// What ModelRegistry does on its loader thread.

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/check.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "server/config/memory_plan.h"
#include "server/observability/log.h"
#include "server/registry/model_registry.h"

namespace aft::server {
namespace {

// Orders that wait for the loader.
constexpr size_t kMaxTasks = 64;

bool HasVersion(const std::vector<ModelConfig>& models, const std::string& version) {
  return std::any_of(models.begin(), models.end(),
                     [&](const ModelConfig& model) { return model.version == version; });
}

}  // namespace

void ModelRegistry::StartLoading() {
  MutexLock lock(join_mutex_);
  AFT_CHECK(!loader_thread_.joinable());
  loader_thread_ = std::thread([this] { RunLoader(); });
}

void ModelRegistry::RunLoader() {
  pthread_setname_np(pthread_self(), "aft-loader");
  LoadAll();
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !draining_) tasks_changed_.Wait(mutex_);
      if (draining_) return;  // who drains refuses the rest
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task(absl::OkStatus());
  }
}

void ModelRegistry::LoadAll() {
  std::vector<Entry*> entries;
  {
    MutexLock lock(mutex_);
    for (const auto& entry : entries_) entries.push_back(entry.get());
  }
  for (Entry* entry : entries) LoadVersions(*entry).IgnoreError();  // the log has it
  {
    MutexLock lock(mutex_);
    load_result_ = SummarizeLoads();
  }
  on_change_();
}

void ModelRegistry::Enqueue(Task task, Wanted wanted) {
  if (wanted) {
    task = [task = std::move(task), wanted = std::move(wanted)](const absl::Status& may) {
      const bool dropped = may.ok() && !wanted();
      task(dropped ? absl::CancelledError("the order is not wanted any more") : may);
    };
  }
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (draining_) {
      refused = Draining();
    } else if (tasks_.size() >= kMaxTasks) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(kMaxTasks, " orders to load or unload wait already"));
    } else {
      tasks_.push_back(std::move(task));
      tasks_changed_.NotifyAll();
      return;
    }
  }
  task(refused);
}

void ModelRegistry::Load(const std::string& name, Done done, Wanted wanted) {
  const auto load = [this, name, done = std::move(done)](const absl::Status& may) {
    done(may.ok() ? Catching([&] { return LoadModel(name); }) : may);
  };
  Enqueue(load, std::move(wanted));
}

void ModelRegistry::Unload(const std::string& name, Done done, Wanted wanted) {
  const auto unload = [this, name, done = std::move(done)](const absl::Status& may) {
    if (!may.ok()) return done(may);
    const absl::StatusOr<Entry*> entry = FindEntry(name);
    if (!entry.ok()) return done(entry.status());
    const std::shared_ptr<void> until_gone(nullptr,
                                           [done](void* /*nothing*/) { done(absl::OkStatus()); });
    UnloadEntry(**entry, /*stay=*/true, until_gone);
  };
  Enqueue(unload, std::move(wanted));
}

void ModelRegistry::Rescan(const RepositoryConfig& repository) {
  Enqueue([this, repository](const absl::Status& may) {
    if (!may.ok()) return;
    {
      MutexLock lock(mutex_);
      repository_ = repository;
    }
    if (repository.folder.empty()) return;
    const absl::Status read = Catching([this] {
      ReadFolder();
      return absl::OkStatus();
    });
    if (!read.ok()) log::Error("repository.unreadable", {{"error", read.ToString()}});
  });
}

RepositoryConfig ModelRegistry::repository() const {
  MutexLock lock(mutex_);
  return repository_;
}

absl::StatusOr<ModelRegistry::Entry*> ModelRegistry::FindEntry(const std::string& name) {
  const RepositoryConfig repository = this->repository();
  {
    MutexLock lock(mutex_);
    if (Entry* const entry = FindNamed(name)) return entry;
    if (repository.folder.empty()) {
      return absl::NotFoundError(absl::StrCat("no model is called \"", name, "\""));
    }
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<ModelConfig> versions, FindVersions(repository, name));
  Entry& entry = AddEntry(name);
  Announce(entry, versions);
  return &entry;
}

absl::StatusOr<std::vector<ModelConfig>> ModelRegistry::WantedVersions(const Entry& entry) const {
  if (entry.config.has_value()) return std::vector<ModelConfig>{*entry.config};
  return FindVersions(repository(), entry.name);
}

bool ModelRegistry::Announce(Entry& entry, const std::vector<ModelConfig>& wanted) {
  MutexLock lock(mutex_);
  if (draining_) return false;
  bool news = false;
  for (const ModelConfig& config : wanted) {
    const auto [it, added] = entry.versions.try_emplace(config.version);
    Version& version = it->second;
    news |= added;
    if (version.model != nullptr || version.state == ModelState::kLoading) continue;
    version.state = ModelState::kLoading;
    version.error = absl::OkStatus();
    news = true;
  }
  Publish(entry);
  return news;
}

absl::Status ModelRegistry::LoadModel(const std::string& name) {
  AFT_ASSIGN_OR_RETURN(Entry * entry, FindEntry(name));
  {
    MutexLock lock(mutex_);
    entry->unloaded = false;
  }
  return LoadVersions(*entry);
}

absl::Status ModelRegistry::LoadVersions(Entry& entry) {
  const absl::StatusOr<std::vector<ModelConfig>> wanted = WantedVersions(entry);
  if (!wanted.ok()) {
    FailLoading(entry, wanted.status());
    return wanted.status();
  }
  if (Announce(entry, *wanted)) on_change_();
  absl::Status failed;
  for (const ModelConfig& config : *wanted) {
    {
      MutexLock lock(mutex_);
      if (draining_) return Draining();
    }
    failed.Update(LoadVersion(entry, config));
  }
  if (failed.ok()) RetireOthers(entry, *wanted);
  return failed;
}

// Its folder is gone, or so.
void ModelRegistry::FailLoading(Entry& entry, const absl::Status& error) {
  log::Error("model.load_failed", {{"model", entry.name}, {"error", error.ToString()}});
  entry.metrics.loads(false).Increment();
  {
    MutexLock lock(mutex_);
    for (auto& [name, version] : entry.versions) {
      if (version.state != ModelState::kLoading) continue;
      version.state = ModelState::kFailed;
      version.error = error;
    }
    Publish(entry);
  }
  on_change_();
}

bool ModelRegistry::IsLoaded(const Entry& entry, const ModelConfig& config,
                             const std::string& stamp) const {
  MutexLock lock(mutex_);
  const Version& version = entry.versions.at(config.version);
  return version.state == ModelState::kReady && version.model->config == config && !stamp.empty() &&
         version.stamp == stamp;
}

absl::Status ModelRegistry::LoadVersion(Entry& entry, const ModelConfig& config) {
  // Of the files as they are before they are read: one that changes meanwhile is loaded again.
  const std::string stamp = FolderStamp(config.checkpoint_dir);
  if (IsLoaded(entry, config, stamp)) return absl::OkStatus();
  log::Info("model.loading",
            {{"model", config.name}, {"version", config.version}, {"path", config.checkpoint_dir}});
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<ModelHold> model;
  const absl::Status tried = Catching([&] {  // no memory, or no thread for its engine
    model = TryLoad(entry, config);
    return model.status();
  });
  if (!tried.ok()) model = tried;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  entry.metrics.loads(model.ok()).Increment();
  if (!model.ok()) {
    const absl::Status& error = model.status();
    log::Error("model.load_failed", {{"model", config.name},
                                     {"version", config.version},
                                     {"path", config.checkpoint_dir},
                                     {"error", error.ToString()}});
    {
      MutexLock lock(mutex_);
      Version& version = entry.versions.at(config.version);
      version.error = error;
      if (version.model == nullptr) version.state = ModelState::kFailed;
      Publish(entry);
    }
    on_change_();
    return absl::Status(error.code(), absl::StrCat("model \"", config.name, "\", version \"",
                                                   config.version, "\": ", error.message()));
  }
  entry.metrics.load_seconds.Set(seconds.count());
  const ModelInfo& info = (*model)->info;
  log::Info("model.ready", {{"model", config.name},
                            {"version", config.version},
                            {"architecture", info.architecture},
                            {"parameters", info.parameters},
                            {"weight_bytes", info.weight_bytes},
                            {"state_bytes", info.state_bytes},
                            {"memory_bytes", info.memory_bytes},
                            {"planned_memory", SumOf(Memory())},
                            {"slots", (*model)->engine().load().slots},
                            {"device", info.device},
                            {"weight_format", info.weight_format},
                            {"seconds", seconds.count()}});
  absl::Status placed = Place(entry, *std::move(model), stamp);
  on_change_();
  return placed;
}

// From here on requests get it.
absl::Status ModelRegistry::Place(Entry& entry, ModelHold model, const std::string& stamp) {
  {
    MutexLock lock(mutex_);
    if (draining_) return Draining();  // the model goes with `model`
    Version& version = entry.versions.at(model->config.version);
    const bool failed = !model->failure.empty();
    version.state = failed ? ModelState::kFailed : ModelState::kReady;
    version.error = failed ? absl::UnavailableError(model->failure) : absl::OkStatus();
    version.stamp = stamp;
    version.model.swap(model);
    Publish(entry);
  }
  if (model != nullptr) Retire({std::move(model)});
  return absl::OkStatus();
}

absl::StatusOr<ModelHold> ModelRegistry::TryLoad(Entry& entry, const ModelConfig& config) {
  if (!entry.config.has_value()) {
    AFT_RETURN_IF_ERROR(CheckVersionFolder(repository().folder, config));
  }
  AFT_ASSIGN_OR_RETURN(LoadedModel loaded, loader_(config));
  auto model = std::make_unique<ServedModel>();
  model->config = config;
  model->metrics = std::make_unique<ModelMetrics>(prometheus_, config.name);
  model->metrics->versions.Set(1);
  const EngineOptions options = {
      .model = config,
      .limits = limits_,
      .scheduling = scheduling_,
      .health = health_,
      .on_failed = [this, &entry, served = model.get()](const std::string& reason) {
        OnFailed(entry, *served, reason);
      }};
  model->tokenizer = loaded.tokenizer;
  model->info = loaded.encoder != nullptr ? loaded.encoder->info() : loaded.runner->info();
  std::vector<MemoryPart> memory = Memory();
  for (MemoryPart& part : MemoryOfModel(config, model->info)) memory.push_back(std::move(part));
  AFT_RETURN_IF_ERROR(CheckMemory(memory, MemoryLimit()));
  if (loaded.encoder != nullptr) {
    model->input_width = loaded.encoder->input_width();
    model->vector_width = loaded.encoder->width();
    AFT_ASSIGN_OR_RETURN(model->encode,
                         EncodeEngine::Create(options, std::move(loaded.encoder), *model->metrics));
  } else {
    AFT_ASSIGN_OR_RETURN(model->generate,
                         GenerateEngine::Create(options, std::move(loaded.runner),
                                                std::move(loaded.tokenizer), *model->metrics));
  }
  return keeper_.Keep(std::move(model));
}

std::vector<MemoryPart> ModelRegistry::Memory() const {
  std::vector<MemoryPart> parts = memory_;
  for (const ModelHold& model : keeper_.Held()) {
    for (MemoryPart& part : MemoryOfModel(model->config, model->info)) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

void ModelRegistry::RetireOthers(Entry& entry, const std::vector<ModelConfig>& wanted) {
  std::vector<ModelHold> others;
  {
    MutexLock lock(mutex_);
    for (auto it = entry.versions.begin(); it != entry.versions.end();) {
      const auto version = it++;
      if (HasVersion(wanted, version->first)) continue;
      if (version->second.model != nullptr) others.push_back(std::move(version->second.model));
      entry.versions.erase(version);
    }
    Publish(entry);
  }
  if (others.empty()) return;
  on_change_();
  Retire(std::move(others));
}

void ModelRegistry::UnloadEntry(Entry& entry, bool stay, const std::shared_ptr<void>& until_gone) {
  std::vector<ModelHold> models;
  {
    MutexLock lock(mutex_);
    entry.unloaded = stay;
    for (auto& [name, version] : entry.versions) {
      if (version.model != nullptr) models.push_back(std::move(version.model));
      version = Version();
      version.state = ModelState::kUnloaded;
    }
    Publish(entry);
  }
  on_change_();  // before anybody hears that it is done
  Retire(std::move(models), until_gone);
}

void ModelRegistry::Retire(std::vector<ModelHold> models, const std::shared_ptr<void>& until_gone) {
  const TimePoint drain_at = std::chrono::steady_clock::now() + repository().drain;
  for (ModelHold& model : models) {
    keeper_.Retire(std::move(model), drain_at, drain_at + drain_.grace, until_gone);
  }
}

void ModelRegistry::LogSkipped(const std::string& name, const absl::Status& why) {
  log::Warning("repository.skipped", {{"model", name}, {"error", why.ToString()}});
}

void ModelRegistry::ReadFolder() {
  const RepositoryConfig repository = this->repository();
  const auto names = ListModelFolders(repository.folder);
  if (!names.ok()) {
    return log::Error("repository.unreadable", {{"error", names.status().ToString()}});
  }
  for (const std::string& name : *names) {
    const absl::StatusOr<Entry*> entry = FindEntry(name);
    absl::Status status = entry.status();
    if (entry.ok()) {
      bool unloaded = false;
      {
        MutexLock lock(mutex_);
        unloaded = (*entry)->unloaded || (*entry)->config.has_value();
      }
      if (!unloaded) status = LoadVersions(**entry);
    }
    if (!status.ok()) LogSkipped(name, status);
  }
  std::vector<Entry*> gone;
  {
    MutexLock lock(mutex_);
    for (const auto& entry : entries_) {
      const bool listed = std::find(names->begin(), names->end(), entry->name) != names->end();
      if (!listed && !entry->config.has_value() && !entry->unloaded) gone.push_back(entry.get());
    }
  }
  for (Entry* entry : gone) UnloadEntry(*entry, /*stay=*/false, nullptr);
}

}  // namespace aft::server
