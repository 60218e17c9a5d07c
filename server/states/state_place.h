#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/client.h"
#include "server/states/state_folder.h"
#include "server/states/state_store.h"

namespace aft::server {

// Where states rest. Thread-safe. Every callback is called once: on this thread, or on one of the
// place's own, which must not wait for anything then. What one client asks for one name is done in
// the order of its calls. UNAVAILABLE: the place cannot be reached, or does not take it.
class StatePlace {
 public:
  using Found = std::function<void(absl::StatusOr<StoredState>)>;
  using Listed = std::function<void(absl::StatusOr<std::vector<StoredState>>)>;
  using Done = std::function<void(const absl::Status&)>;

  virtual ~StatePlace() = default;

  // As StateBudget::Reserve; where a state is sealed to be kept, with room for the sealed copy.
  virtual absl::StatusOr<StateBudget::Room> Reserve(const Client& client, int64_t bytes) = 0;

  // Keeps it, in place of what the owner has under that name. An error: that may still be there.
  // `rest`: what Reserve gave, without what the state itself takes. It is given back when the
  // sealed copy is gone.
  virtual void Put(StateFolder::File file, StateBudget::Room rest, Found put) = 0;

  // NOT_FOUND: unknown, or it has expired. RESOURCE_EXHAUSTED: there is no memory for it.
  virtual void Find(const Client& client, const std::string& owner, const std::string& id,
                    Found found) = 0;

  // The same; the state may be without what only a model needs of it.
  virtual void Describe(const Client& client, const std::string& owner, const std::string& id,
                        Found found) = 0;

  // As StateStore::List; the states as those of Describe.
  virtual void List(const Client& client, const std::string& owner, const std::string& after,
                    size_t most, Listed listed) = 0;

  // NOT_FOUND, as Find. REQUIRES: nobody else has a state under that name.
  virtual void Remove(const Client& client, const std::string& owner, const std::string& id,
                      Done done) = 0;

  // Lets go of what has expired. To be called every second or so.
  virtual void Expire() = 0;
};

}  // namespace aft::server
