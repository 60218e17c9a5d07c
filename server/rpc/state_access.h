#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aft/v1/states.pb.h"
#include "base/periodic.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/states/state_folder.h"
#include "server/states/state_sealer.h"
#include "server/states/state_store.h"

namespace aft::server {

// The states that are kept, as calls see them: who may have which, what the fields of a request
// mean. Errors begin with the field's path. Thread-safe.
class StateAccess {
 public:
  // `known_clients`: every call is of a client that proved who it is, and each has its own states.
  // With a folder, what that holds is kept again. `metrics` must outlive every state. Errors as
  // StateSealer::Create and StateFolder::Open.
  static absl::StatusOr<std::unique_ptr<StateAccess>> Create(const StatesConfig& config,
                                                             bool known_clients,
                                                             StateMetrics& metrics);

  // INVALID_ARGUMENT: larger than any request that names a state.
  static absl::Status CheckRequestBytes(size_t bytes);

  // What a request goes on from: a state that is kept, or one that it brings. INVALID_ARGUMENT;
  // NOT_FOUND: there is no such state, or it has expired, or it is another client's;
  // FAILED_PRECONDITION: none are kept.
  absl::StatusOr<std::shared_ptr<const SequenceState>> Find(const Client& client,
                                                            const v1::Previous& previous);

  // A place for a state that is to come.
  struct Place {
    StateStore::Room room;
    std::chrono::milliseconds ttl{};
  };
  // INVALID_ARGUMENT; RESOURCE_EXHAUSTED; FAILED_PRECONDITION: none are kept.
  absl::StatusOr<Place> Reserve(const Client& client, const v1::Store& store, int64_t bytes);
  // Calls `done` once: on this thread; with a folder, on that one's, after the state is on the
  // disk. UNAVAILABLE: it cannot be written.
  using Stored = std::function<void(absl::StatusOr<v1::State>)>;
  void Put(Place place, const Client& client, const std::string& model, SequenceState state,
           Stored done);

  // The state of that id; `field` is where the request has it. Errors as Find.
  absl::StatusOr<StoredState> Look(const Client& client, const char* field, const std::string& id);

  const StateSealer& sealer() const { return sealer_; }
  // INVALID_ARGUMENT: StateSealer::Open. `field`: where the request has it.
  absl::StatusOr<SequenceState> Open(const char* field, absl::string_view sealed);

  // The client will never learn of this state.
  void Discard(const Client& client, const std::string& id);

  // Of StateService.
  absl::Status Get(const Client& client, const v1::StateServiceGetRequest& request,
                   v1::StateServiceGetResponse& response);
  absl::Status List(const Client& client, const v1::StateServiceListRequest& request,
                    v1::StateServiceListResponse& response);
  // Calls `done` once, as Put does. UNAVAILABLE: the file of the state cannot be removed, and the
  // state stays.
  void Delete(const Client& client, const v1::StateServiceDeleteRequest& request,
              StateFolder::Done done);

 private:
  StateAccess(const StatesConfig& config, bool known_clients, StateSealer sealer,
              StateMetrics& metrics);

  // Keeps what the folder holds.
  void Load();
  void Expire();
  absl::Status CheckKept() const;
  absl::StatusOr<v1::State> Keep(Place place, const std::string& owner, const std::string& model,
                                 SequenceState state, std::string id);
  void Remove(const std::string& owner, const std::string& id, StateFolder::Done done);
  std::string OwnerOf(const Client& client) const { return known_clients_ ? client.name : ""; }
  v1::State Encode(const StoredState& stored) const;

  const StatesConfig config_;
  const bool known_clients_;
  const StateSealer sealer_;
  StateMetrics& metrics_;
  std::unique_ptr<StateStore> store_;    // null: none are kept
  std::unique_ptr<StateFolder> folder_;  // null: there is none; its thread uses the store
  std::unique_ptr<Periodic> expiry_;     // last: its thread uses both
};

}  // namespace aft::server
