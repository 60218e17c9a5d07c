#include "server/states/local_states.h"

#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {

absl::StatusOr<std::unique_ptr<LocalStates>> LocalStates::Create(const StatesConfig& config,
                                                                 const StateSealer& sealer,
                                                                 StateMetrics& metrics) {
  auto states = absl::WrapUnique(new LocalStates(config, metrics));
  if (!config.folder.empty()) {
    AFT_ASSIGN_OR_RETURN(states->folder_, StateFolder::Open(config.folder, sealer, metrics));
    AFT_RETURN_IF_ERROR(states->folder_->CheckSpace(config.max_bytes));
    states->folder_->Load(config.max_bytes, config.max_ttl,
                          [&](const StateFolder::File& file) { return states->Load(file); });
  }
  return states;
}

absl::Status LocalStates::Load(const StateFolder::File& file) {
  Client client;
  client.name = file.client;
  AFT_ASSIGN_OR_RETURN(StateBudget::Room room, store_.Reserve(client, StateBytes(*file.state)));
  StateFolder::File held = file;
  AFT_ASSIGN_OR_RETURN(held.state, StateBudget::Hold(std::move(room), *file.state));
  Keep(held);
  return absl::OkStatus();
}

void LocalStates::Put(StateFolder::File file, StateBudget::Room rest, Found put) {
  const auto copy = std::make_shared<StateBudget::Room>(std::move(rest));
  if (folder_ == nullptr) {
    *copy = {};
    return put(Keep(file));
  }
  folder_->Write(file, [this, file, copy, put = std::move(put)](const absl::Status& written) {
    *copy = {};
    if (written.ok()) return put(Keep(file));
    if (const auto left_out = write_errors_.Pass(std::chrono::steady_clock::now())) {
      log::Error("states.write_failed", {{"error", written.ToString()}, {"left_out", *left_out}});
    }
    put(absl::UnavailableError("states: this one could not be written to states.folder"));
  });
}

void LocalStates::Find(const Client& /*client*/, const std::string& owner, const std::string& id,
                       Found found) {
  found(store_.Find(owner, id));
}

void LocalStates::Remove(const Client& /*client*/, const std::string& owner, const std::string& id,
                         Done done) {
  if (folder_ == nullptr) return done(store_.Delete(owner, id));
  folder_->Remove(id, [this, owner, id, done = std::move(done)](const absl::Status& removed) {
    if (removed.ok()) return done(store_.Delete(owner, id));
    if (const auto left_out = remove_errors_.Pass(std::chrono::steady_clock::now())) {
      log::Error("states.remove_failed", {{"error", removed.ToString()}, {"left_out", *left_out}});
    }
    done(absl::UnavailableError("states: this one could not be removed from states.folder"));
  });
}

void LocalStates::Expire() {
  store_.Expire();
  if (folder_ != nullptr) folder_->Expire();
}

}  // namespace aft::server
