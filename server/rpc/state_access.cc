#include "server/rpc/state_access.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/observability/log.h"
#include "server/rpc/call_metadata.h"

namespace aft::server {
namespace {

constexpr size_t kPage = 100;  // states of one answer

absl::Status CheckId(const char* field, const std::string& id) {
  return CheckLength(field, id.size(), StateStore::kIdBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateAccess>> StateAccess::Create(const StatesConfig& config,
                                                                 bool known_clients,
                                                                 StateMetrics& metrics) {
  AFT_ASSIGN_OR_RETURN(StateSealer sealer, StateSealer::Create(config.key_files));
  auto access =
      absl::WrapUnique(new StateAccess(config, known_clients, std::move(sealer), metrics));
  if (!config.folder.empty()) {
    AFT_ASSIGN_OR_RETURN(access->folder_,
                         StateFolder::Open(config.folder, access->sealer_, metrics));
    access->Load();
  }
  if (access->store_ != nullptr) {
    access->expiry_ = std::make_unique<Periodic>("aft-states", std::chrono::seconds(1),
                                                 [states = access.get()] { states->Expire(); });
  }
  return access;
}

StateAccess::StateAccess(const StatesConfig& config, bool known_clients, StateSealer sealer,
                         StateMetrics& metrics)
    : config_(config),
      known_clients_(known_clients),
      sealer_(std::move(sealer)),
      metrics_(metrics) {
  if (config.max_bytes > 0) store_ = std::make_unique<StateStore>(config, metrics);
}

void StateAccess::Load() {
  const auto take = [this](const StateFolder::File& file) -> absl::Status {
    Client client;
    client.name = file.client;
    Place place;
    AFT_ASSIGN_OR_RETURN(place.room, store_->Reserve(client, StateBytes(*file.state)));
    place.ttl = file.ttl;
    return Keep(std::move(place), file.owner, file.model, *file.state, file.id).status();
  };
  folder_->Load(config_.max_bytes, config_.max_ttl, take);
}

void StateAccess::Expire() {
  store_->Expire();
  if (folder_ != nullptr) folder_->Expire();
}

absl::Status StateAccess::CheckKept() const {
  if (store_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("states: this server keeps none (states.max_bytes is 0)");
}

absl::StatusOr<StoredState> StateAccess::Look(const Client& client, const char* field,
                                              const std::string& id) {
  if (id.empty()) return BadField(field, "must not be empty");
  AFT_RETURN_IF_ERROR(CheckId(field, id));
  AFT_RETURN_IF_ERROR(CheckKept());
  absl::StatusOr<StoredState> stored = store_->Find(OwnerOf(client), id);
  if (stored.ok()) return stored;
  return absl::Status(stored.status().code(), absl::StrCat(field, ": ", stored.status().message()));
}

absl::StatusOr<std::shared_ptr<const SequenceState>> StateAccess::Find(
    const Client& client, const v1::Previous& previous) {
  if (previous.state().empty()) {
    AFT_ASSIGN_OR_RETURN(const StoredState stored,
                         Look(client, "previous.state_id", previous.state_id()));
    return stored.state;
  }
  if (!previous.state_id().empty()) {
    return BadField("previous", "must have one of state_id and state");
  }
  AFT_ASSIGN_OR_RETURN(SequenceState state, Open("previous.state", previous.state()));
  return std::make_shared<const SequenceState>(std::move(state));
}

absl::StatusOr<SequenceState> StateAccess::Open(const char* field, absl::string_view sealed) {
  absl::StatusOr<SequenceState> state = sealer_.Open(sealed);
  if (state.ok()) return state;
  metrics_.refused(StateRefusal::kInvalid).Increment();
  return BadField(field, state.status().message());
}

absl::Status StateAccess::CheckRequestBytes(size_t bytes) {
  constexpr size_t kOtherFields = 256;  // of newer clients
  return CheckLength("id", bytes, StateStore::kIdBytes + kOtherFields);
}

absl::StatusOr<StateAccess::Place> StateAccess::Reserve(const Client& client,
                                                        const v1::Store& store, int64_t bytes) {
  Place place;
  place.ttl = config_.default_ttl;
  const auto most = static_cast<uint64_t>(config_.max_ttl.count());
  if (store.has_ttl_ms()) {
    if (store.ttl_ms() < 1 || store.ttl_ms() > most) {
      return BadField("store.ttl_ms",
                      absl::StrCat("must be in [1, ", most, "], got ", store.ttl_ms()));
    }
    place.ttl = std::chrono::milliseconds(store.ttl_ms());
  }
  AFT_RETURN_IF_ERROR(CheckKept());
  AFT_ASSIGN_OR_RETURN(place.room, store_->Reserve(client, bytes));
  return place;
}

void StateAccess::Put(Place place, const Client& client, const std::string& model,
                      SequenceState state, Stored done) {
  const std::string owner = OwnerOf(client);
  std::string id = StateStore::NewId();
  if (folder_ == nullptr) {
    return done(Keep(std::move(place), owner, model, std::move(state), std::move(id)));
  }
  // Nobody sees the state before it is on the disk.
  auto kept = std::make_shared<std::pair<Place, SequenceState>>(std::move(place), std::move(state));
  StateFolder::File file{.id = id,
                         .client = client.name,
                         .owner = owner,
                         .model = model,
                         .ttl = kept->first.ttl,
                         .state = std::shared_ptr<const SequenceState>(kept, &kept->second)};
  folder_->Write(std::move(file), [this, kept, owner, model, id,
                                   done = std::move(done)](const absl::Status& written) {
    if (!written.ok()) {
      log::Error("states.write_failed", {{"error", written.ToString()}});
      kept->first = {};
      return done(absl::UnavailableError("states: this one could not be written to states.folder"));
    }
    absl::StatusOr<v1::State> stored =
        Keep(std::move(kept->first), owner, model, std::move(kept->second), id);
    if (stored.ok()) return done(std::move(stored));
    folder_->Remove(id, [done, stored](const absl::Status& /*removed*/) { done(stored); });
  });
}

absl::StatusOr<v1::State> StateAccess::Keep(Place place, const std::string& owner,
                                            const std::string& model, SequenceState state,
                                            std::string id) {
  AFT_ASSIGN_OR_RETURN(
      const StoredState stored,
      store_->Put(std::move(place.room), owner, model, std::move(state), place.ttl, std::move(id)));
  return Encode(stored);
}

void StateAccess::Discard(const Client& client, const std::string& id) {
  Remove(OwnerOf(client), id, [](const absl::Status& /*removed*/) {});  // it may have expired
}

absl::Status StateAccess::Get(const Client& client, const v1::StateServiceGetRequest& request,
                              v1::StateServiceGetResponse& response) {
  AFT_ASSIGN_OR_RETURN(const StoredState stored, Look(client, "id", request.id()));
  *response.mutable_state() = Encode(stored);
  return absl::OkStatus();
}

absl::Status StateAccess::List(const Client& client, const v1::StateServiceListRequest& request,
                               v1::StateServiceListResponse& response) {
  AFT_RETURN_IF_ERROR(CheckId("after_id", request.after_id()));
  AFT_RETURN_IF_ERROR(CheckKept());
  if (!known_clients_) {
    return absl::FailedPreconditionError(
        "states: they can be listed only where clients are known (security.clients_file)");
  }
  for (const StoredState& stored : store_->List(OwnerOf(client), request.after_id(), kPage)) {
    *response.add_states() = Encode(stored);
  }
  return absl::OkStatus();
}

void StateAccess::Delete(const Client& client, const v1::StateServiceDeleteRequest& request,
                         StateFolder::Done done) {
  const absl::Status found = Look(client, "id", request.id()).status();
  if (!found.ok()) return done(found);
  Remove(OwnerOf(client), request.id(), std::move(done));
}

void StateAccess::Remove(const std::string& owner, const std::string& id, StateFolder::Done done) {
  if (folder_ == nullptr) return done(store_->Delete(owner, id));
  folder_->Remove(id, [this, owner, id, done = std::move(done)](const absl::Status& removed) {
    if (removed.ok()) return done(store_->Delete(owner, id));
    log::Error("states.remove_failed", {{"error", removed.ToString()}});
    done(absl::UnavailableError("states: this one could not be removed from states.folder"));
  });
}

v1::State StateAccess::Encode(const StoredState& stored) const {
  v1::State message;
  message.set_id(stored.id);
  message.set_model(stored.model);
  message.set_tokens(static_cast<uint64_t>(stored.state->tokens));
  message.set_bytes(static_cast<uint64_t>(stored.bytes));
  message.set_ttl_ms(static_cast<uint64_t>(store_->TimeLeft(stored).count()));
  message.set_history(stored.state->history);
  message.set_pending(stored.state->pending != kNoToken);
  return message;
}

}  // namespace aft::server
