#include "server/registry/model_registry.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/catching.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "server/observability/log.h"
#include "server/registry/chat_template.h"

namespace aft::server {

namespace {

// An order to unload. It is done when the last model that holds this object is destroyed.
struct Unloading {
  explicit Unloading(ModelRegistry::Done when_done) : done(std::move(when_done)) {}
  Unloading(const Unloading&) = delete;
  Unloading& operator=(const Unloading&) = delete;
  ~Unloading() { done(begun); }
  const ModelRegistry::Done done;
  absl::Status begun;  // is set while the loader's thread holds this object
};

}  // namespace

Progress LoadProgress(const ModelConfig& config, std::function<Progress::Clock::time_point()> now) {
  const auto show = [&config](std::optional<int> percent) {
    if (!percent.has_value()) return;
    log::Info("model.loading",
              {{"model", config.name}, {"version", config.version}, {"percent", *percent}});
  };
  return Progress(std::chrono::seconds(5), show, std::move(now));
}

ModelRegistry::ModelRegistry(const ServerConfig& config, ModelLoader loader,
                             prometheus::Registry& metrics, std::function<void()> on_change)
    : ModelTable(config.repository.folder, metrics),
      memory_(MemoryOfConfig(config)),
      limits_(config.limits),
      scheduling_(config.scheduling),
      health_(config.health),
      drain_(config.drain),
      loader_(std::move(loader)),
      prometheus_(metrics),
      on_change_(std::move(on_change)),
      repository_(config.repository) {
  for (const ModelConfig& model : config.models) {
    Entry& entry = AddEntry(model.name);
    entry.config = model;
    Announce(entry, {model});
  }
  if (config.repository.folder.empty()) return;
  const auto names = ListModelFolders(config.repository.folder);
  scanned_ = names.status();
  if (!names.ok()) {
    log::Error("repository.unreadable", {{"error", names.status().ToString()}});
    return;
  }
  for (const std::string& name : *names) {
    const absl::Status found = FindOrAddFolder(name).status();
    if (found.ok()) continue;
    LogSkipped(name, found);
    skipped_.push_back(absl::StrCat("\"", name, "\": ", found.message()));
  }
}

ModelRegistry::~ModelRegistry() {
  Shutdown(TimePoint::min());
  LetGo();
}

void ModelRegistry::StartLoading() {
  thread_.Start([this] { LoadAll(); });
}

void ModelRegistry::LoadAll() {
  absl::Status result = Catching([this] {
    for (Entry* entry : Entries()) LoadVersions(*entry).IgnoreError();  // the log has the error
    std::optional<std::vector<std::string>> failures = LoadFailures();
    if (!failures.has_value()) return absl::OkStatus();
    if (!scanned_.ok()) failures->push_back(absl::StrCat("repository: ", scanned_.message()));
    failures->insert(failures->end(), skipped_.begin(), skipped_.end());
    if (failures->empty()) return absl::OkStatus();  // the repository has no model yet
    return absl::FailedPreconditionError(
        absl::StrCat("no model could be loaded: ", absl::StrJoin(*failures, "; ")));
  });
  {
    MutexLock lock(mutex_);
    load_result_ = std::move(result);
  }
  on_change_();
}

std::optional<absl::Status> ModelRegistry::load_result() const {
  MutexLock lock(mutex_);
  return load_result_;
}

void ModelRegistry::Order(LoaderThread::Task task, Wanted wanted) {
  if (wanted) {
    task = [task = std::move(task), wanted = std::move(wanted)](const absl::Status& may) {
      const bool dropped = may.ok() && !wanted();
      task(dropped ? absl::CancelledError("the order is not wanted any more") : may);
    };
  }
  thread_.Order(std::move(task));
}

void ModelRegistry::Load(const std::string& name, Done done, Wanted wanted) {
  const auto load = [this, name, done = std::move(done)](const absl::Status& may) {
    done(may.ok() ? Catching([&] { return LoadModel(name); }) : may);
  };
  Order(load, std::move(wanted));
}

void ModelRegistry::Unload(const std::string& name, Done done, Wanted wanted) {
  const auto unload = [this, name, done = std::move(done)](const absl::Status& may) {
    if (!may.ok()) return done(may);
    std::shared_ptr<Unloading> unloading;
    absl::Status begun = Catching([&]() -> absl::Status {
      AFT_ASSIGN_OR_RETURN(Entry* const entry, FindOrAdd(name));
      unloading = std::make_shared<Unloading>(done);
      UnloadEntry(*entry, /*stay=*/true, unloading);
      return absl::OkStatus();
    });
    if (unloading == nullptr) return done(begun);
    unloading->begun = std::move(begun);
  };
  Order(unload, std::move(wanted));
}

void ModelRegistry::Rescan(const RepositoryConfig& repository) {
  {
    MutexLock lock(mutex_);
    repository_ = repository;
  }
  if (repository.folder.empty()) return;
  const auto rescan = [this](const absl::Status& may) {
    if (!may.ok()) return;  // the server drains
    const absl::Status read = Catching([this] {
      ReadFolder();
      return absl::OkStatus();
    });
    if (!read.ok()) log::Error("repository.unreadable", {{"error", read.ToString()}});
  };
  thread_.Order(rescan, /*limited=*/false);
}

RepositoryConfig ModelRegistry::repository() const {
  MutexLock lock(mutex_);
  return repository_;
}

absl::StatusOr<ModelTable::Entry*> ModelRegistry::FindOrAdd(const std::string& name) {
  if (Entry* const entry = FindEntry(name)) return entry;
  const RepositoryConfig repository = this->repository();
  if (repository.folder.empty()) {
    return absl::NotFoundError(absl::StrCat("no model is called \"", name, "\""));
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<ModelConfig> versions, FindVersions(repository, name));
  Entry& entry = AddEntry(name);
  Announce(entry, versions);
  return &entry;
}

absl::StatusOr<ModelTable::Entry*> ModelRegistry::FindOrAddFolder(const std::string& name) {
  AFT_ASSIGN_OR_RETURN(Entry * entry, FindOrAdd(name));
  if (!entry->config.has_value()) return entry;
  return absl::FailedPreconditionError("`models` has a model of this name: its folder is not read");
}

absl::StatusOr<std::vector<ModelConfig>> ModelRegistry::WantedVersions(const Entry& entry) const {
  if (entry.config.has_value()) return std::vector<ModelConfig>{*entry.config};
  return FindVersions(repository(), entry.name);
}

absl::Status ModelRegistry::LoadModel(const std::string& name) {
  AFT_ASSIGN_OR_RETURN(Entry * entry, FindOrAdd(name));
  Allow(*entry);
  return LoadVersions(*entry);
}

absl::Status ModelRegistry::LoadVersions(Entry& entry) {
  const absl::StatusOr<std::vector<ModelConfig>> wanted = WantedVersions(entry);
  if (!wanted.ok()) {  // for example, its folder is gone
    const absl::Status& error = wanted.status();
    log::Error("model.load_failed", {{"model", entry.name}, {"error", error.ToString()}});
    entry.metrics.loads(false).Increment();
    FailLoading(entry, error);
    on_change_();
    return error;
  }
  if (Announce(entry, *wanted)) on_change_();
  absl::Status failed;
  for (const ModelConfig& config : *wanted) {
    if (IsDraining()) return Draining();
    failed.Update(LoadVersion(entry, config));
  }
  std::vector<ModelHold> others = TakeOthers(entry, *wanted, /*loaded=*/failed.ok());
  if (!others.empty()) on_change_();
  Retire(std::move(others));
  return failed;
}

absl::Status ModelRegistry::LoadVersion(Entry& entry, const ModelConfig& config) {
  // The stamp is of the files before they are read: one that changes meanwhile is loaded again.
  const std::string stamp = FolderStamp(config.checkpoint_dir);
  if (KeepLoaded(entry, config, stamp)) return absl::OkStatus();
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
    FailVersion(entry, config.version, error);
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
  absl::StatusOr<ModelHold> before = Place(entry, *std::move(model), stamp);
  absl::Status placed = before.status();
  if (placed.ok() && *before != nullptr) Retire({*std::move(before)});
  on_change_();
  return placed;
}

absl::StatusOr<ModelHold> ModelRegistry::TryLoad(Entry& entry, const ModelConfig& config) {
  if (!entry.config.has_value()) {
    AFT_RETURN_IF_ERROR(CheckVersionFolder(repository().folder, config));
  }
  Progress progress = LoadProgress(config);
  LoadOptions load = static_cast<const LoadOptions&>(config);
  load.progress = &progress;
  AFT_ASSIGN_OR_RETURN(LoadedModel loaded, loader_(load));
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
        Fail(entry, *served, reason);
        on_change_();
      }};
  model->tokenizer = loaded.tokenizer;
  model->info = loaded.encoder != nullptr ? loaded.encoder->info() : loaded.runner->info();
  for (InitialState& state : loaded.initial_states) {
    model->info.memory_bytes += static_cast<int64_t>(state.snapshot.size());
    const auto number = static_cast<int32_t>(model->initial_states.size()) + 1;
    std::string name = state.name;
    model->initial_states[std::move(name)] =
        MakeInitialState(model->info.fingerprint, std::move(state), number);
  }
  std::vector<MemoryPart> memory = Memory();
  for (MemoryPart& part : MemoryOfModel(config, model->info)) memory.push_back(std::move(part));
  AFT_RETURN_IF_ERROR(CheckMemory(memory, MemoryLimit()));
  if (loaded.encoder != nullptr) {
    model->input_width = loaded.encoder->input_width();
    model->vector_width = loaded.encoder->width();
    AFT_ASSIGN_OR_RETURN(model->encode,
                         EncodeEngine::Create(options, std::move(loaded.encoder), *model->metrics));
  } else {
    AFT_RETURN_IF_ERROR(CheckChatTemplate(config, model->info, *model->tokenizer));
    model->vector_width = model->info.hidden_width;
    AFT_ASSIGN_OR_RETURN(model->generate,
                         GenerateEngine::Create(options, std::move(loaded.runner),
                                                std::move(loaded.tokenizer), *model->metrics));
  }
  return keeper_.Keep(std::move(model));
}

std::vector<MemoryPart> ModelRegistry::Memory() const {
  std::vector<MemoryPart> parts = memory_;
  for (MemoryPart& part : keeper_.Memory()) parts.push_back(std::move(part));
  return parts;
}

void ModelRegistry::UnloadEntry(Entry& entry, bool stay, const std::shared_ptr<void>& until_gone) {
  std::vector<ModelHold> models = TakeAll(entry, stay);
  on_change_();  // before the caller is told that it is done
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
  const auto names = ListModelFolders(repository().folder);
  if (!names.ok()) {
    return log::Error("repository.unreadable", {{"error", names.status().ToString()}});
  }
  const std::vector<Entry*> unlisted = Relist(*names);
  if (names->empty() && AnyLoaded(unlisted)) {
    return log::Error("repository.unreadable",
                      {{"error", "the repository has no model any more: is it mounted?"}});
  }
  for (const std::string& name : *names) {
    const absl::StatusOr<Entry*> entry = FindOrAddFolder(name);
    absl::Status status = entry.status();
    if (entry.ok() && MayReload(**entry)) status = LoadVersions(**entry);
    if (!status.ok()) LogSkipped(name, status);
  }
  for (Entry* entry : unlisted) UnloadEntry(*entry, /*stay=*/false, nullptr);
}

std::map<std::string, ModelAges> ModelRegistry::Ages() const { return AgesOf(keeper_.Held()); }

void ModelRegistry::BeginDrain() {
  if (!Drain()) return;
  thread_.Drain();
  for (const ModelHold& model : keeper_.Held()) model->engine().BeginDrain();
  PublishAll();  // only now: where the metric says "draining", no further request begins
  on_change_();
}

void ModelRegistry::CheckProgress() {
  for (const ModelHold& model : keeper_.Held()) model->engine().CheckProgress();
}

bool ModelRegistry::Shutdown(TimePoint deadline) {
  BeginDrain();
  const bool ended = keeper_.Shutdown(deadline);
  thread_.Join();
  return ended;
}

}  // namespace aft::server
