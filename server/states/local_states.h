#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "server/observability/rate_limit.h"
#include "server/states/state_place.h"

namespace aft::server {

// Keeps states in this process's memory, and in a folder if there is one. With a folder, a state
// can be found only once it is on the disk, and every state in the folder is in memory too.
// Callbacks come from the calling thread; with a folder, those of Put and Remove from its thread.
class LocalStates final : public StatePlace {
 public:
  // Loads the states that the folder holds. The sealer must outlive the object, and metrics must
  // outlive every state. Errors as Open and CheckSpace of StateFolder.
  // REQUIRES: config.max_bytes > 0.
  static absl::StatusOr<std::unique_ptr<LocalStates>> Create(const StatesConfig& config,
                                                             const StateSealer& sealer,
                                                             StateMetrics& metrics);

  absl::StatusOr<StateBudget::Room> Reserve(const Client& client, int64_t bytes) override {
    const int64_t all = folder_ == nullptr ? bytes : 2 * bytes;
    AFT_RETURN_IF_ERROR(store_.CheckFits(all));
    return store_.Reserve(client, all);
  }
  void Put(StateFolder::File file, StateBudget::Room rest, Found put) override;
  void Find(const Client& client, const std::string& owner, const std::string& id,
            Found found) override;
  void List(const Client& /*client*/, const std::string& owner, const std::string& after,
            size_t most, Listed listed) override {
    listed(store_.List(owner, after, most));
  }
  void Remove(const Client& client, const std::string& owner, const std::string& id,
              Done done) override;
  void Expire() override;

 private:
  LocalStates(const StatesConfig& config, StateMetrics& metrics) : store_(config, metrics) {}

  absl::Status Load(const StateFolder::File& file);
  StoredState Keep(const StateFolder::File& file) {
    return store_.Put(file.owner, file.id, file.model, file.state, file.ttl);
  }

  // One limit for both kinds of errors would let one hide the other.
  RateLimit write_errors_{1};
  RateLimit remove_errors_{1};
  StateStore store_;
  std::unique_ptr<StateFolder> folder_;  // null: no folder; its thread uses the store
};

}  // namespace aft::server
