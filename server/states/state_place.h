#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/client.h"
#include "server/states/state_folder.h"
#include "server/states/state_store.h"

namespace aft::server {

// A store of states. Every callback is called once, on the calling thread or on a thread of the
// store, and must not wait for anything. Calls of one client for one name are executed in their
// order. UNAVAILABLE: the store cannot be reached, or does not accept the state. Thread-safe.
class StatePlace {
 public:
  using Found = std::function<void(absl::StatusOr<StoredState>)>;
  using Listed = std::function<void(absl::StatusOr<std::vector<StoredState>>)>;
  using Done = std::function<void(const absl::Status&)>;

  virtual ~StatePlace() = default;

  // As StateBudget::Reserve, with additional room for the sealed copy if this store seals states.
  // INVALID_ARGUMENT: there can never be room for such a state. UNAVAILABLE: the store is known to
  // be down, so the state could not be put.
  virtual absl::StatusOr<StateBudget::Room> Reserve(const Client& client, int64_t bytes) = 0;

  // Stores the state in place of the owner's state with that id, if there is one. After an error
  // the old one may still exist. `rest` is the room that Reserve gave, without the part that the
  // state itself takes. It is given back when the sealed copy is freed.
  virtual void Put(StateFolder::File file, StateBudget::Room rest, Found put) = 0;

  // NOT_FOUND: the state is unknown, or has expired. RESOURCE_EXHAUSTED: no memory for it.
  virtual void Find(const Client& client, const std::string& owner, const std::string& id,
                    Found found) = 0;

  // Like Find, but the state may lack what only a model needs.
  virtual void Describe(const Client& client, const std::string& owner, const std::string& id,
                        Found found) {
    Find(client, owner, id, std::move(found));
  }

  // Does the same as StateStore::List; the states are as those of Describe.
  virtual void List(const Client& client, const std::string& owner, const std::string& after,
                    size_t most, Listed listed) = 0;

  // NOT_FOUND as Find, but not counted as refused. REQUIRES: no other owner has a state under that
  // name.
  virtual void Remove(const Client& client, const std::string& owner, const std::string& id,
                      Done done) = 0;

  // Releases states that have expired. Must be called about every second.
  virtual void Expire() = 0;
};

}  // namespace aft::server
