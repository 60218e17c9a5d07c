#include "server/states/state_access.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/states/local_states.h"

namespace aft::server {
namespace {

constexpr size_t kPage = 100;  // states in one answer

// The longest time for which a resume point is kept after it was written. A client tries for about
// 21 s to resume a broken stream (client/README.md), after up to 30 s in which it may not notice
// the break. The server cannot tell a stream that its application has cancelled from a broken one.
// So this time also limits how long the states of cancelled streams take their client's room.
constexpr std::chrono::minutes kResumePointTtl{5};

absl::Status CheckId(const char* field, const std::string& id) {
  return CheckLength(field, id.size(), StateStore::kIdBytes);
}

absl::Status OfField(const char* field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

double SecondsSince(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// For callers that need only the state itself.
StatePlace::Found StateOf(StateAccess::Found found) {
  return [found = std::move(found)](const absl::StatusOr<StoredState>& stored) {
    if (!stored.ok()) return found(stored.status());
    found(stored->state);
  };
}

v1::State Encode(const StoredState& stored) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      stored.expires - std::chrono::steady_clock::now());
  v1::State message;
  message.set_id(stored.id);
  message.set_model(stored.model);
  message.set_tokens(static_cast<uint64_t>(stored.state->tokens));
  message.set_bytes(static_cast<uint64_t>(stored.bytes));
  message.set_ttl_ms(static_cast<uint64_t>(std::max<int64_t>(left.count(), 0)));
  message.set_history(stored.state->history);
  message.set_pending(stored.state->pending != kNoToken);
  return message;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateAccess>> StateAccess::Create(const StatesConfig& config,
                                                                 bool known_clients,
                                                                 StateMetrics& metrics,
                                                                 RedisStates::Executor executor) {
  AFT_ASSIGN_OR_RETURN(StateSealer sealer, StateSealer::Create(config.key_files));
  auto access =
      absl::WrapUnique(new StateAccess(config, known_clients, std::move(sealer), metrics));
  if (config.max_bytes == 0) return access;
  if (config.redis.address.empty()) {
    AFT_ASSIGN_OR_RETURN(access->place_, LocalStates::Create(config, access->sealer_, metrics));
  } else {
    AFT_ASSIGN_OR_RETURN(
        access->place_, RedisStates::Create(config, access->sealer_, metrics, std::move(executor)));
  }
  access->expiry_ = std::make_unique<Periodic>("aft-states", std::chrono::seconds(1),
                                               [place = access->place_.get()] { place->Expire(); });
  return access;
}

StateAccess::StateAccess(const StatesConfig& config, bool known_clients, StateSealer sealer,
                         StateMetrics& metrics)
    : config_(config),
      known_clients_(known_clients),
      sealer_(std::move(sealer)),
      metrics_(metrics) {}

absl::Status StateAccess::CheckKept() const {
  if (place_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("this server stores no states (states.max_bytes is 0)");
}

absl::Status StateAccess::CheckWanted(const char* field, const std::string& id) const {
  if (id.empty()) return BadField(field, "must not be empty");
  AFT_RETURN_IF_ERROR(CheckId(field, id));
  return CheckKept();
}

void StateAccess::Look(const Client& client, const char* field, const std::string& id,
                       StatePlace::Found found) {
  const absl::Status wanted = CheckWanted(field, id);
  if (!wanted.ok()) return found(wanted);
  Find(client, field, id, std::move(found));
}

void StateAccess::Find(const Client& client, const char* field, const std::string& name,
                       StatePlace::Found found) {
  const auto began = std::chrono::steady_clock::now();
  place_->Find(client, OwnerOf(client), name,
               [this, began, field, found = std::move(found)](absl::StatusOr<StoredState> stored) {
                 if (!stored.ok()) return found(OfField(field, stored.status()));
                 metrics_.restore_seconds.Observe(SecondsSince(began));
                 found(std::move(stored));
               });
}

void StateAccess::Find(const Client& client, const v1::Previous& previous, Found found) {
  if (previous.state().empty()) {
    return Look(client, "previous.state_id", previous.state_id(), StateOf(std::move(found)));
  }
  if (!previous.state_id().empty()) {
    return found(BadField("previous", "must have one of state_id and state"));
  }
  absl::StatusOr<SequenceState> state = Open("previous.state", previous.state());
  if (!state.ok()) return found(state.status());
  found(std::make_shared<const SequenceState>(*std::move(state)));
}

absl::StatusOr<SequenceState> StateAccess::Open(const char* field, absl::string_view sealed) {
  absl::StatusOr<SequenceState> state = sealer_.Open(sealed);
  if (state.ok()) return state;
  metrics_.refused(StateRefusal::kInvalid).Increment();
  return BadField(field, state.status().message());
}

absl::Status StateAccess::CheckRequestBytes(size_t bytes) {
  constexpr size_t kOtherFields = 256;  // that newer clients may send
  return CheckLength("request", bytes, StateStore::kIdBytes + kOtherFields);
}

absl::StatusOr<StateAccess::Place> StateAccess::Reserve(const Client& client,
                                                        const v1::Store& store, int64_t bytes) {
  Place place;
  place.id = StateStore::NewId();
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
  AFT_ASSIGN_OR_RETURN(place.room, place_->Reserve(client, bytes));
  return place;
}

void StateAccess::Put(Place place, const Client& client, const std::string& model,
                      SequenceState state, Stored done) {
  const std::string id = place.id;
  Keep(std::move(place), client, model, id, std::move(state),
       [done = std::move(done)](const absl::StatusOr<StoredState>& stored) {
         if (!stored.ok()) return done(stored.status());
         done(Encode(*stored));
       });
}

void StateAccess::Keep(Place place, const Client& client, const std::string& model,
                       const std::string& name, SequenceState state, StatePlace::Found kept) {
  StateBudget::Room rest =
      place.room.Split(std::max<int64_t>(place.room.bytes() - StateBytes(state), 0));
  auto held = StateBudget::Hold(std::move(place.room), std::move(state));
  if (!held.ok()) return kept(held.status());
  place_->Put({.id = name,
               .client = client.name,
               .owner = OwnerOf(client),
               .model = model,
               .ttl = place.ttl,
               .state = *std::move(held)},
              std::move(rest),
              [this, began = std::chrono::steady_clock::now(),
               kept = std::move(kept)](absl::StatusOr<StoredState> stored) {
                if (stored.ok()) metrics_.store_seconds.Observe(SecondsSince(began));
                kept(std::move(stored));
              });
}

void StateAccess::Discard(const Client& client, const std::string& id) {
  place_->Remove(client, OwnerOf(client), id,
                 [](const absl::Status& /*removed*/) {});  // it may have expired
}

void StateAccess::PutResumePoint(const Client& client, const std::string& model,
                                 const std::string& id, SequenceState state,
                                 StatePlace::Done done) {
  absl::StatusOr<Place> place = Reserve(client, v1::Store(), StateBytes(state));
  if (!place.ok()) return done(place.status());
  place->ttl = std::min<std::chrono::milliseconds>(place->ttl, kResumePointTtl);
  Keep(*std::move(place), client, model, StateStore::ResumePointName(id), std::move(state),
       [done = std::move(done)](const absl::StatusOr<StoredState>& kept) { done(kept.status()); });
}

void StateAccess::FindResumePoint(const Client& client, const std::string& id, Found found) {
  const absl::Status wanted = CheckWanted("resume_id", id);
  if (!wanted.ok()) return found(wanted);
  Find(client, "resume_id", StateStore::ResumePointName(id), StateOf(std::move(found)));
}

void StateAccess::RemoveResumePoint(const Client& client, const std::string& id) {
  if (place_ != nullptr) Discard(client, StateStore::ResumePointName(id));
}

void StateAccess::Get(const Client& client, const v1::StateServiceGetRequest& request,
                      const Answer<v1::StateServiceGetResponse>& answer) {
  const absl::Status wanted = CheckWanted("id", request.id());
  if (!wanted.ok()) return answer(wanted);
  place_->Describe(client, OwnerOf(client), request.id(),
                   [answer](const absl::StatusOr<StoredState>& stored) {
                     if (!stored.ok()) return answer(OfField("id", stored.status()));
                     v1::StateServiceGetResponse response;
                     *response.mutable_state() = Encode(*stored);
                     answer(std::move(response));
                   });
}

void StateAccess::List(const Client& client, const v1::StateServiceListRequest& request,
                       const Answer<v1::StateServiceListResponse>& answer) {
  absl::Status status = CheckId("after_id", request.after_id());
  if (status.ok()) status = CheckKept();
  if (status.ok() && !known_clients_) {
    status = absl::FailedPreconditionError(
        "states: they can be listed only where clients are known (security.clients_file)");
  }
  if (!status.ok()) return answer(status);
  place_->List(client, OwnerOf(client), request.after_id(), kPage,
               [answer](const absl::StatusOr<std::vector<StoredState>>& states) {
                 if (!states.ok()) return answer(states.status());
                 v1::StateServiceListResponse response;
                 for (const StoredState& stored : *states) *response.add_states() = Encode(stored);
                 answer(std::move(response));
               });
}

void StateAccess::Delete(const Client& client, const v1::StateServiceDeleteRequest& request,
                         const Answer<v1::StateServiceDeleteResponse>& answer) {
  const absl::Status wanted = CheckWanted("id", request.id());
  if (!wanted.ok()) return answer(wanted);
  const auto removed = [answer](const absl::Status& status) {
    if (!status.ok()) return answer(OfField("id", status));
    answer(v1::StateServiceDeleteResponse());
  };
  const auto found = [this, removed, client,
                      id = request.id()](const absl::StatusOr<StoredState>& stored) {
    if (!stored.ok()) return removed(stored.status());
    place_->Remove(client, OwnerOf(client), id, removed);
  };
  place_->Describe(client, OwnerOf(client), request.id(), found);
}

}  // namespace aft::server
