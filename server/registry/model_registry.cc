#include "server/registry/model_registry.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {

ModelRegistry::ModelRegistry(const ServerConfig& config, ModelLoader loader,
                             prometheus::Registry& metrics, std::function<void()> on_change)
    : limits_(config.limits),
      scheduling_(config.scheduling),
      health_(config.health),
      loader_(std::move(loader)),
      on_change_(std::move(on_change)),
      entries_([&] {
        std::vector<std::unique_ptr<Entry>> entries;
        for (const ModelConfig& model : config.models) {
          entries.push_back(std::make_unique<Entry>(model, metrics));
          entries.back()->metrics.SetState(ModelState::kLoading);
        }
        return entries;
      }()) {}

ModelRegistry::~ModelRegistry() { Shutdown(TimePoint::min()); }

void ModelRegistry::StartLoading() {
  MutexLock lock(join_mutex_);
  AFT_CHECK(!loader_thread_.joinable());
  loader_thread_ = std::thread([this] { LoadAll(); });
}

void ModelRegistry::LoadAll() {
  for (const auto& entry : entries_) {
    {
      MutexLock lock(mutex_);
      if (draining_) break;
    }
    Load(*entry);
    on_change_();
  }
  {
    MutexLock lock(mutex_);
    load_result_ = SummarizeLoads();
  }
  on_change_();
}

void ModelRegistry::Load(Entry& entry) {
  log::Info("model.loading", {{"model", entry.config.name}, {"path", entry.config.checkpoint_dir}});
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::shared_ptr<const ServedModel>> model = TryLoad(entry);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!model.ok()) {
    log::Error("model.load_failed", {{"model", entry.config.name},
                                     {"path", entry.config.checkpoint_dir},
                                     {"error", model.status().ToString()}});
    MutexLock lock(mutex_);
    entry.error = model.status();
    SetState(entry, ModelState::kFailed);
    return;
  }
  entry.metrics.load_seconds.Set(seconds.count());
  const ModelInfo& info = (*model)->info;
  log::Info("model.ready", {{"model", entry.config.name},
                            {"architecture", info.architecture},
                            {"parameters", info.parameters},
                            {"weight_bytes", info.weight_bytes},
                            {"state_bytes", info.state_bytes},
                            {"slots", (*model)->engine().load().slots},
                            {"device", info.device},
                            {"weight_format", info.weight_format},
                            {"seconds", seconds.count()}});
  MutexLock lock(mutex_);
  if (draining_) return;  // the model goes with `model`
  entry.model = *std::move(model);
  if (entry.state != ModelState::kFailed) SetState(entry, ModelState::kReady);
}

void ModelRegistry::OnFailed(Entry& entry, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    entry.error = absl::UnavailableError(reason);
    SetState(entry, ModelState::kFailed);
  }
  on_change_();
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelRegistry::TryLoad(Entry& entry) {
  AFT_ASSIGN_OR_RETURN(LoadedModel loaded, loader_(entry.config));
  const EngineOptions options = {
      .model = entry.config,
      .limits = limits_,
      .scheduling = scheduling_,
      .health = health_,
      .on_failed = [this, &entry](const std::string& reason) { OnFailed(entry, reason); }};
  auto model = std::make_shared<ServedModel>();
  model->config = entry.config;
  model->tokenizer = loaded.tokenizer;
  if (loaded.encoder != nullptr) {
    model->info = loaded.encoder->info();
    model->vector_width = loaded.encoder->width();
    AFT_ASSIGN_OR_RETURN(model->encode,
                         EncodeEngine::Create(options, std::move(loaded.encoder), entry.metrics));
  } else {
    model->info = loaded.runner->info();
    AFT_ASSIGN_OR_RETURN(model->generate,
                         GenerateEngine::Create(options, std::move(loaded.runner),
                                                std::move(loaded.tokenizer), entry.metrics));
  }
  return model;
}

void ModelRegistry::SetState(Entry& entry, ModelState state) {
  entry.state = state;
  entry.metrics.SetState(state);
}

absl::Status ModelRegistry::SummarizeLoads() const {
  std::vector<std::string> failures;
  for (const auto& entry : entries_) {
    if (entry->state != ModelState::kFailed) return absl::OkStatus();
    failures.push_back(absl::StrCat("\"", entry->config.name, "\": ", entry->error.message()));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no model could be loaded: ", absl::StrJoin(failures, "; ")));
}

std::optional<absl::Status> ModelRegistry::load_result() const {
  MutexLock lock(mutex_);
  return load_result_;
}

absl::StatusOr<ModelRegistry::Entry*> ModelRegistry::Find(absl::string_view name) const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    if (entry->config.name == name) return entry.get();
    names.push_back(absl::StrCat("\"", entry->config.name, "\""));
  }
  return absl::NotFoundError(
      absl::StrCat("no model is called \"", name, "\"; there is ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelRegistry::Acquire(
    absl::string_view name) const {
  if (name.empty()) {
    if (entries_.size() != 1) {
      return absl::InvalidArgumentError("model: must be set, the server serves several");
    }
    name = entries_.front()->config.name;
  }
  AFT_ASSIGN_OR_RETURN(Entry * entry, Find(name));
  MutexLock lock(mutex_);
  switch (entry->state) {
    case ModelState::kReady:
      return entry->model;
    case ModelState::kLoading:
      return absl::UnavailableError(absl::StrCat("model \"", name, "\" is loading"));
    case ModelState::kDraining:
      entry->metrics.rejected(Rejection::kDraining).Increment();
      return absl::UnavailableError("the server is draining");
    case ModelState::kFailed:
      break;
  }
  entry->metrics.rejected(Rejection::kFailed).Increment();
  return absl::UnavailableError(absl::StrCat(
      "model \"", name, entry->model != nullptr ? "\" has failed" : "\" failed to load"));
}

ModelStatus ModelRegistry::Describe(const Entry& entry) const {
  ModelStatus status;
  status.name = entry.config.name;
  status.version = entry.config.version;
  status.state = entry.state;
  status.error = std::string(entry.error.message());
  status.slots = entry.config.slots;
  if (entry.model == nullptr) return status;
  status.load = entry.model->engine().load();
  status.slots = status.load.slots;
  status.info = entry.model->info;
  status.vector_width = entry.model->vector_width;
  return status;
}

std::vector<ModelStatus> ModelRegistry::List() const {
  MutexLock lock(mutex_);
  std::vector<ModelStatus> models;
  for (const auto& entry : entries_) models.push_back(Describe(*entry));
  return models;
}

absl::StatusOr<ModelStatus> ModelRegistry::Get(absl::string_view name) const {
  AFT_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  MutexLock lock(mutex_);
  return Describe(*entry);
}

ModelMetrics* ModelRegistry::FindMetrics(absl::string_view name) {
  if (name.empty() && entries_.size() == 1) return &entries_.front()->metrics;
  absl::StatusOr<Entry*> entry = Find(name);
  return entry.ok() ? &(*entry)->metrics : nullptr;
}

void ModelRegistry::BeginDrain() {
  {
    MutexLock lock(mutex_);
    if (draining_) return;
    draining_ = true;
    for (const auto& entry : entries_) {
      if (entry->state != ModelState::kFailed) SetState(*entry, ModelState::kDraining);
    }
  }
  for (const auto& model : Loaded()) model->engine().BeginDrain();
  on_change_();
}

std::vector<std::shared_ptr<const ServedModel>> ModelRegistry::Loaded() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const ServedModel>> models;
  for (const auto& entry : entries_) {
    if (entry->model != nullptr) models.push_back(entry->model);
  }
  return models;
}

void ModelRegistry::CheckProgress() {
  for (const auto& model : Loaded()) model->engine().CheckProgress();
}

bool ModelRegistry::Shutdown(TimePoint deadline) {
  BeginDrain();
  bool ended = true;
  for (const auto& model : Loaded()) ended &= model->engine().TryShutdown(deadline);
  MutexLock lock(join_mutex_);
  if (loader_thread_.joinable()) loader_thread_.join();
  return ended;
}

}  // namespace aft::server
