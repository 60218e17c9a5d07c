#pragma once

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
#include "server/states/redis_states.h"
#include "server/states/state_place.h"
#include "server/states/state_sealer.h"

namespace aft::server {

// The part of a sealed state in one message: far below gRPC's default limit.
inline constexpr size_t kStateChunkBytes = size_t{256} << 10;

// The stored states as calls see them: which client may have which state, and what the fields of a
// request mean. Errors begin with the field's path. Thread-safe.
//
// Methods that may have to wait for the store answer by a callback. It is called once, on the
// calling thread or on another one, and must not wait for anything. A state from Redis comes on the
// executor's thread.
class StateAccess {
 public:
  using Found = std::function<void(absl::StatusOr<std::shared_ptr<const SequenceState>>)>;
  template <typename Response>
  using Answer = std::function<void(const absl::StatusOr<Response>&)>;

  // `known_clients`: every caller is a client that proved its identity, and each client has its own
  // states. `metrics` must outlive every state. `executor`: see RedisStates. Errors as
  // StateSealer::Create, LocalStates::Create and RedisStates::Create.
  static absl::StatusOr<std::unique_ptr<StateAccess>> Create(const StatesConfig& config,
                                                             bool known_clients,
                                                             StateMetrics& metrics,
                                                             RedisStates::Executor executor);

  // INVALID_ARGUMENT if the request is larger than any that only names a state.
  static absl::Status CheckRequestBytes(size_t bytes);

  // Finds the state that a request continues from: a stored one, or one in the request.
  // INVALID_ARGUMENT; NOT_FOUND: there is no such state, or it has expired, or it is another
  // client's; FAILED_PRECONDITION: this server stores no states; UNAVAILABLE: the store cannot be
  // reached.
  void Find(const Client& client, const v1::Previous& previous, Found found);

  // A place for a state that will be stored.
  struct Place {
    std::string id;  // the state's id
    StateBudget::Room room;
    std::chrono::milliseconds ttl{};
  };
  // INVALID_ARGUMENT; RESOURCE_EXHAUSTED; FAILED_PRECONDITION: this server stores no states;
  // UNAVAILABLE: the store is known to be down.
  absl::StatusOr<Place> Reserve(const Client& client, const v1::Store& store, int64_t bytes);
  // UNAVAILABLE: the state cannot be written.
  using Stored = std::function<void(absl::StatusOr<v1::State>)>;
  void Put(Place place, const Client& client, const std::string& model, SequenceState state,
           Stored done);

  // Finds the state of that id. `field` is the field of the request that has it. Errors as Find.
  void Look(const Client& client, const char* field, const std::string& id,
            StatePlace::Found found);

  const StatesConfig& config() const { return config_; }
  bool keeps() const { return place_ != nullptr; }
  // Whether other servers have the stored states too.
  bool shared() const { return !config_.redis.address.empty(); }

  const StateSealer& sealer() const { return sealer_; }
  // INVALID_ARGUMENT as StateSealer::Open. `field` is the field of the request that has the state.
  absl::StatusOr<SequenceState> Open(const char* field, absl::string_view sealed);

  // Removes a state whose id the client does not know, and never will.
  void Discard(const Client& client, const std::string& id);

  // A resume point is a state that a running stream writes again and again under one id, so that
  // another call can continue from there. Like a stored state it belongs to its client, and counts
  // against the client's budget. But only FindResumePoint finds it; requests of StateService do
  // not. Each resume point replaces the last one, and a concurrent read finds either the old or the
  // new one as a whole. It is kept for 5 minutes after it was written (states.default_ttl_ms, if
  // that is less), or until it is removed.
  static std::string NewResumeId() { return StateStore::NewId(); }
  // RESOURCE_EXHAUSTED, FAILED_PRECONDITION: as Reserve; UNAVAILABLE: as Put. After an error the
  // old resume point may stay. The caller must wait for `done` before it puts the next one.
  void PutResumePoint(const Client& client, const std::string& model, const std::string& id,
                      SequenceState state, StatePlace::Done done);
  // Errors as Find: an id that is not a resume point, or not this client's, is NOT_FOUND.
  void FindResumePoint(const Client& client, const std::string& id, Found found);
  // Removes the resume point, even one that is still being put. REQUIRES: the id was the client's.
  void RemoveResumePoint(const Client& client, const std::string& id);

  // The methods of StateService.
  void Get(const Client& client, const v1::StateServiceGetRequest& request,
           const Answer<v1::StateServiceGetResponse>& answer);
  void List(const Client& client, const v1::StateServiceListRequest& request,
            const Answer<v1::StateServiceListResponse>& answer);
  // UNAVAILABLE: the state cannot be removed, and stays.
  void Delete(const Client& client, const v1::StateServiceDeleteRequest& request,
              const Answer<v1::StateServiceDeleteResponse>& answer);

 private:
  StateAccess(const StatesConfig& config, bool known_clients, StateSealer sealer,
              StateMetrics& metrics);

  absl::Status CheckKept() const;
  // Checks that `field` has the id of a state that may be stored.
  absl::Status CheckWanted(const char* field, const std::string& id) const;
  void Keep(Place place, const Client& client, const std::string& model, const std::string& name,
            SequenceState state, StatePlace::Found kept);
  void Find(const Client& client, const char* field, const std::string& name,
            StatePlace::Found found);
  std::string OwnerOf(const Client& client) const { return known_clients_ ? client.name : ""; }

  const StatesConfig config_;
  const bool known_clients_;
  const StateSealer sealer_;
  StateMetrics& metrics_;
  std::unique_ptr<StatePlace> place_;  // null: no states are stored
  std::unique_ptr<Periodic> expiry_;   // last: its thread uses the place
};

}  // namespace aft::server
