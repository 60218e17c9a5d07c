#include "server/registry/model_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/registry/without_paths.h"

namespace aft::server {
namespace {

// A request gets a version of the highest rank.
int Rank(ModelState state) {
  switch (state) {
    case ModelState::kReady:
      return 4;
    case ModelState::kDraining:
      return 3;
    case ModelState::kLoading:
      return 2;
    case ModelState::kFailed:
      return 1;
    case ModelState::kUnloaded:
      break;
  }
  return 0;
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

bool HasVersion(const std::vector<ModelConfig>& models, const std::string& version) {
  return std::any_of(models.begin(), models.end(),
                     [&](const ModelConfig& model) { return model.version == version; });
}

}  // namespace

void ModelTable::LetGo() {
  std::vector<ModelHold> last;  // released without the lock
  MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    for (auto& [version, loaded] : entry->versions) last.push_back(std::move(loaded.model));
  }
}

absl::Status ModelTable::CheckMayUse(const Client& client, absl::string_view name) {
  if (client.MayUse(name)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("client ", Quoted(client.name), " may not use model ", Quoted(name)));
}

ModelTable::Entry* ModelTable::FindNamed(absl::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [name](const auto& entry) { return entry->name == name; });
  return found == entries_.end() ? nullptr : found->get();
}

absl::StatusOr<ModelTable::Entry*> ModelTable::Find(const Client& client,
                                                    absl::string_view name) const {
  if (!name.empty()) {
    AFT_RETURN_IF_ERROR(CheckMayUse(client, name));
    if (Entry* const entry = FindNamed(name)) return entry;
  }
  Entry* usable = nullptr;
  std::vector<std::string> names;  // those that the client may know
  const auto add_names = [&](bool gone) {
    for (const auto& entry : entries_) {
      if (!client.MayUse(entry->name) || entry->gone != gone) continue;
      usable = entry.get();
      names.push_back(Quoted(entry->name));
    }
  };
  add_names(/*gone=*/false);
  if (names.empty()) add_names(/*gone=*/true);
  if (name.empty()) {
    if (names.size() == 1) return usable;
    if (names.empty() && !entries_.empty()) {
      return absl::PermissionDeniedError(absl::StrCat(
          "client ", Quoted(client.name), " may use none of the models that are served"));
    }
    if (names.empty()) {
      return absl::InvalidArgumentError("model: must be set, and no model is served yet");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("model: must be set to one of ", absl::StrJoin(names, ", ")));
  }
  if (names.empty()) names.push_back("none");
  return absl::NotFoundError(
      absl::StrCat("no model is called ", Quoted(name), "; there is ", absl::StrJoin(names, ", ")));
}

const ModelTable::NamedVersion* ModelTable::Best(const Entry& entry) {
  // A version that was never loaded must not hide one of the same rank that was: the liveness of
  // the server depends on loaded models that have failed.
  const auto rank = [](const NamedVersion& named) {
    return std::make_pair(Rank(named.second.state), named.second.model != nullptr);
  };
  const auto best = std::max_element(
      entry.versions.begin(), entry.versions.end(),
      [rank](const NamedVersion& a, const NamedVersion& b) { return rank(a) < rank(b); });
  return best == entry.versions.end() ? nullptr : &*best;
}

absl::StatusOr<const ModelTable::NamedVersion*> ModelTable::Pick(const Entry& entry,
                                                                 absl::string_view version) {
  if (version.empty()) return Best(entry);
  std::vector<std::string> versions;
  for (const NamedVersion& named : entry.versions) {
    if (named.first == version) return &named;
    versions.push_back(Quoted(named.first));
  }
  return absl::NotFoundError(absl::StrCat("model_version: model ", Quoted(entry.name),
                                          " has version ", absl::StrJoin(versions, ", "), ", not ",
                                          Quoted(version)));
}

ModelHold ModelTable::Matching(const ModelHold& model, uint64_t fingerprint) const {
  if (model->info.fingerprint == fingerprint) return model;
  MutexLock lock(mutex_);
  const Entry* const entry = FindNamed(model->config.name);
  if (entry == nullptr) return model;
  for (const auto& [name, version] : entry->versions) {
    if (version.state != ModelState::kReady) continue;
    if (version.model->info.fingerprint == fingerprint) return version.model;
  }
  return model;
}

absl::StatusOr<ModelHold> ModelTable::Acquire(const Client& client, absl::string_view name,
                                              absl::string_view version) const {
  return FindReady(client, name, version, /*counts=*/true);
}

absl::StatusOr<ModelHold> ModelTable::Look(const Client& client, absl::string_view name,
                                           absl::string_view version) const {
  return FindReady(client, name, version, /*counts=*/false);
}

absl::StatusOr<ModelHold> ModelTable::FindReady(const Client& client, absl::string_view name,
                                                absl::string_view version, bool counts) const {
  MutexLock lock(mutex_);
  AFT_ASSIGN_OR_RETURN(Entry * entry, Find(client, name));
  AFT_ASSIGN_OR_RETURN(const NamedVersion* named, Pick(*entry, version));
  const std::string model = absl::StrCat("model ", Quoted(entry->name));
  const ModelState state = named != nullptr ? named->second.state : ModelState::kUnloaded;
  const auto refuse = [&](Rejection why, absl::Status status) {
    if (counts) entry->metrics.rejected(why).Increment();
    return status;
  };
  switch (state) {
    case ModelState::kReady:
      return named->second.model;
    case ModelState::kLoading:
    case ModelState::kUnloaded:
      return refuse(
          Rejection::kNotReady,
          absl::UnavailableError(
              model + (state == ModelState::kLoading ? " is loading" : " is not loaded")));
    case ModelState::kDraining:
      return refuse(Rejection::kDraining, Draining());
    case ModelState::kFailed:
      break;
  }
  return refuse(Rejection::kFailed,
                absl::UnavailableError(
                    model + (named->second.model != nullptr ? " has failed" : " failed to load")));
}

absl::StatusOr<ModelHold> ModelTable::AcquireOnly(const Client& client,
                                                  absl::string_view name) const {
  {
    MutexLock lock(mutex_);
    AFT_ASSIGN_OR_RETURN(const Entry* entry, Find(client, name));
    if (entry->versions.size() > 1) {
      return absl::NotFoundError(
          absl::StrCat("model ", Quoted(entry->name), " has several versions"));
    }
  }
  return Acquire(client, name);
}

ModelStatus ModelTable::Describe(const Entry& entry, const NamedVersion* wanted) {
  const auto describe = [](const NamedVersion& named, VersionStatus& status) {
    status.version = named.first;
    status.state = named.second.state;
    status.error = ToValidUtf8(named.second.error.message());  // it may quote a damaged file
    const ModelHold& model = named.second.model;
    if (model == nullptr) return;
    status.fingerprint = model->info.fingerprint;
    status.steps = model->metrics->steps;
    status.encodes = model->encode != nullptr;
    status.batches = model->metrics->batches.Get();
  };
  ModelStatus status;
  status.name = entry.name;
  status.state = ModelState::kUnloaded;
  for (const NamedVersion& named : entry.versions) describe(named, status.versions.emplace_back());
  if (entry.config.has_value()) status.slots = entry.config->slots;
  if (wanted == nullptr) return status;
  describe(*wanted, status);
  const ModelHold& model = wanted->second.model;
  if (model == nullptr) return status;
  status.load = model->engine().load();
  status.slots = status.load.slots;
  // The requests of a failed model have ended, even while its thread is stuck and holds them.
  if (!model->failure.empty()) {
    status.load.running = status.load.waiting = 0;
    status.load.oldest_waiting = Duration(0);
  }
  status.info = model->info;
  status.device_memory_used = model->metrics->device_memory_used;
  status.device_memory_total = model->metrics->device_memory_total;
  status.vector_width = model->vector_width;
  if (model->generate != nullptr) status.chat = ChatTemplateOf(model->config, model->info);
  for (const auto& [name, state] : model->initial_states) status.initial_states.push_back(name);
  return status;
}

std::vector<ModelStatus> ModelTable::List() const {
  MutexLock lock(mutex_);
  std::vector<ModelStatus> models;
  for (const auto& entry : entries_) {
    if (!entry->gone) models.push_back(Describe(*entry, Best(*entry)));
  }
  return models;
}

std::vector<ModelStatus> ModelTable::List(const Client& client) const {
  MutexLock lock(mutex_);
  std::vector<ModelStatus> models;
  for (const auto& entry : entries_) {
    if (entry->gone || !client.MayUse(entry->name)) continue;
    models.push_back(DescribeTo(client, *entry, Best(*entry)));
  }
  return models;
}

ModelStatus ModelTable::DescribeTo(const Client& client, const Entry& entry,
                                   const NamedVersion* wanted) const {
  ModelStatus status = Describe(entry, wanted);
  status.error = Told(client, status.error);
  for (VersionStatus& version : status.versions) version.error = Told(client, version.error);
  return status;
}

std::string ModelTable::Told(const Client& client, absl::string_view error) const {
  if (client.admin || error.empty()) return std::string(error);
  std::vector<std::string> folders = {folder_};
  for (const auto& entry : entries_) {
    if (entry->config.has_value()) folders.push_back(entry->config->checkpoint_dir);
  }
  return WithoutPaths(error, folders);
}

std::string ModelTable::ToldTo(const Client& client, absl::string_view error) const {
  MutexLock lock(mutex_);
  return Told(client, error);
}

absl::StatusOr<ModelStatus> ModelTable::Get(const Client& client, absl::string_view name,
                                            absl::string_view version) const {
  MutexLock lock(mutex_);
  AFT_ASSIGN_OR_RETURN(const Entry* entry, Find(client, name));
  AFT_ASSIGN_OR_RETURN(const NamedVersion* named, Pick(*entry, version));
  return DescribeTo(client, *entry, named);
}

ModelMetrics* ModelTable::FindMetrics(const Client& client, absl::string_view name) const {
  MutexLock lock(mutex_);
  Entry* const entry = name.empty() ? Find(client, name).value_or(nullptr) : FindNamed(name);
  return entry != nullptr ? &entry->metrics : nullptr;
}

void ModelTable::Publish(Entry& entry) {
  const NamedVersion* const best = Best(entry);
  entry.metrics.SetState(best != nullptr ? best->second.state : ModelState::kUnloaded);
  entry.metrics.versions_failed.Set(static_cast<double>(
      std::count_if(entry.versions.begin(), entry.versions.end(),
                    [](const NamedVersion& version) { return !version.second.error.ok(); })));
}

std::map<std::string, ModelAges> ModelTable::AgesOf(const std::vector<ModelHold>& held) const {
  MutexLock lock(mutex_);
  std::map<std::string, ModelAges> all;
  for (const auto& entry : entries_) {
    ModelAges& ages = all[entry->name];
    std::optional<Duration> since_step;  // of versions that run requests
    for (const ModelHold& model : held) {
      if (model->config.name != entry->name || !model->failure.empty()) continue;
      const EngineLoad load = model->engine().load();
      ages.oldest_waiting = std::max(ages.oldest_waiting, load.oldest_waiting);
      if (load.running > 0) {
        since_step = std::max(since_step.value_or(Duration(0)), load.since_step);
      }
    }
    ages.since_step = since_step.value_or(Describe(*entry, Best(*entry)).load.since_step);
  }
  return all;
}

ModelTable::Entry& ModelTable::AddEntry(const std::string& name) {
  auto entry = std::make_unique<Entry>(name, prometheus_);
  MutexLock lock(mutex_);
  return *entries_.emplace_back(std::move(entry));
}

ModelTable::Entry* ModelTable::FindEntry(absl::string_view name) const {
  MutexLock lock(mutex_);
  return FindNamed(name);
}

std::vector<ModelTable::Entry*> ModelTable::Entries() const {
  std::vector<Entry*> entries;
  MutexLock lock(mutex_);
  for (const auto& entry : entries_) entries.push_back(entry.get());
  return entries;
}

bool ModelTable::Announce(Entry& entry, const std::vector<ModelConfig>& wanted) {
  MutexLock lock(mutex_);
  if (draining_) return false;
  entry.gone = false;
  bool news = false;
  for (auto& [name, version] : entry.versions) {
    // The version is only served until a wanted one is ready, so its current files do not matter.
    if (HasVersion(wanted, name) || version.state != ModelState::kReady) continue;
    version.error = absl::OkStatus();
  }
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

void ModelTable::Allow(Entry& entry) {
  MutexLock lock(mutex_);
  entry.unloaded = false;
}

void ModelTable::FailLoading(Entry& entry, const absl::Status& error) {
  MutexLock lock(mutex_);
  for (auto& [name, version] : entry.versions) {
    const bool loading = version.state == ModelState::kLoading;
    if (!loading && version.state != ModelState::kReady) continue;
    if (loading) version.state = ModelState::kFailed;
    version.error = error;
  }
  Publish(entry);
}

void ModelTable::FailVersion(Entry& entry, const std::string& version, const absl::Status& error) {
  MutexLock lock(mutex_);
  Version& failed = entry.versions.at(version);
  failed.error = error;
  if (failed.model == nullptr) failed.state = ModelState::kFailed;
  Publish(entry);
}

bool ModelTable::KeepLoaded(Entry& entry, const ModelConfig& config, const std::string& stamp) {
  MutexLock lock(mutex_);
  Version& version = entry.versions.at(config.version);
  if (version.state != ModelState::kReady || version.model->config != config || stamp.empty() ||
      version.stamp != stamp) {
    return false;
  }
  version.error = absl::OkStatus();
  Publish(entry);
  return true;
}

absl::StatusOr<ModelHold> ModelTable::Place(Entry& entry, ModelHold model,
                                            const std::string& stamp) {
  MutexLock lock(mutex_);
  if (draining_) return Draining();
  Version& version = entry.versions.at(model->config.version);
  const bool failed = !model->failure.empty();
  version.state = failed ? ModelState::kFailed : ModelState::kReady;
  version.error = failed ? absl::UnavailableError(model->failure) : absl::OkStatus();
  version.stamp = stamp;
  version.model.swap(model);
  Publish(entry);
  return model;
}

std::vector<ModelHold> ModelTable::TakeOthers(Entry& entry, const std::vector<ModelConfig>& wanted,
                                              bool loaded) {
  std::vector<ModelHold> others;
  MutexLock lock(mutex_);
  for (auto it = entry.versions.begin(); it != entry.versions.end();) {
    const auto version = it++;
    if (HasVersion(wanted, version->first)) continue;
    if (!loaded && version->second.model != nullptr) continue;
    if (version->second.model != nullptr) others.push_back(std::move(version->second.model));
    entry.versions.erase(version);
  }
  Publish(entry);
  return others;
}

std::vector<ModelHold> ModelTable::TakeAll(Entry& entry, bool stay) {
  std::vector<ModelHold> models;
  MutexLock lock(mutex_);
  entry.unloaded |= stay;
  entry.gone |= !stay;  // an order does not bring the folder back
  for (auto& [name, version] : entry.versions) {
    if (version.model != nullptr) models.push_back(std::move(version.model));
    version = Version();
    version.state = ModelState::kUnloaded;
  }
  Publish(entry);
  return models;
}

void ModelTable::Fail(Entry& entry, const ServedModel& model, const std::string& reason) {
  MutexLock lock(mutex_);
  model.failure = reason;
  for (auto& [version, loaded] : entry.versions) {
    if (loaded.model.get() != &model) continue;  // it was retired, or is not in its place yet
    loaded.error = absl::UnavailableError(reason);
    loaded.state = ModelState::kFailed;
  }
  Publish(entry);
}

std::vector<ModelTable::Entry*> ModelTable::Relist(const std::vector<std::string>& names) {
  std::vector<Entry*> unlisted;
  MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    const bool listed = std::find(names.begin(), names.end(), entry->name) != names.end();
    if (listed) entry->gone = false;
    if (!listed && !entry->gone && !entry->config.has_value()) unlisted.push_back(entry.get());
  }
  return unlisted;
}

bool ModelTable::AnyLoaded(const std::vector<Entry*>& entries) const {
  MutexLock lock(mutex_);
  return std::any_of(entries.begin(), entries.end(), [](const Entry* entry) {
    return std::any_of(entry->versions.begin(), entry->versions.end(),
                       [](const NamedVersion& named) { return named.second.model != nullptr; });
  });
}

bool ModelTable::MayReload(const Entry& entry) const {
  MutexLock lock(mutex_);
  return !entry.unloaded && !entry.config.has_value();
}

std::optional<std::vector<std::string>> ModelTable::LoadFailures() const {
  MutexLock lock(mutex_);
  std::vector<std::string> failures;
  for (const auto& entry : entries_) {
    const NamedVersion* const best = Best(*entry);
    if (best == nullptr || best->second.state != ModelState::kFailed) return std::nullopt;
    failures.push_back(absl::StrCat(Quoted(entry->name), ": ", best->second.error.message()));
  }
  return failures;
}

bool ModelTable::Drain() {
  MutexLock lock(mutex_);
  if (draining_) return false;
  draining_ = true;
  for (const auto& entry : entries_) {
    for (auto& [version, loaded] : entry->versions) {
      if (Rank(loaded.state) > Rank(ModelState::kFailed)) loaded.state = ModelState::kDraining;
    }
  }
  return true;
}

void ModelTable::PublishAll() {
  MutexLock lock(mutex_);
  for (const auto& entry : entries_) Publish(*entry);
}

bool ModelTable::IsDraining() const {
  MutexLock lock(mutex_);
  return draining_;
}

}  // namespace aft::server
