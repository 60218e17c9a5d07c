#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/time.h"
#include "server/states/redis_client.h"
#include "server/states/redis_record.h"
#include "server/states/state_budget.h"
#include "server/states/state_place.h"

namespace aft::server {

// Keeps states in Redis, for every server that shares it. They take memory of this process
// (StateBudget) only while a request uses them, or is about to leave one.
//
// A state is the value of PREFIX s:ID (RedisRecord) until it expires by Redis' own clock. Three
// keys list the states of a client. Scripts change them together with the value, so that all agree
// even if several servers write, or one crashes:
//
//   PREFIX x:CLIENT   sorted set of ids, by when they expire in ms since 1970
//   PREFIX n:CLIENT   sorted set of ID:BYTES, in the order of ids
//   PREFIX b:CLIENT   the sum of these bytes
//
// Every script first removes the states that have expired by Redis' clock. States can be listed and
// removed even if Redis is beyond its maxmemory. A value that Redis evicted stays in these keys
// until it would have expired, so Redis' maxmemory-policy should be noeviction.
class RedisStates final : public StatePlace {
 public:
  // Runs a task of that client on a thread for tasks whose time grows with the size of a state.
  using Executor =
      std::function<void(const Client& client, size_t bytes, std::function<void()> task)>;
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  // Does not need Redis to be running yet. NOT_FOUND names a password file that cannot be read. The
  // sealer must outlive the object, and metrics must outlive every state. `executor` must have run
  // its tasks before the object is destroyed. REQUIRES: config.max_bytes > 0.
  static absl::StatusOr<std::unique_ptr<RedisStates>> Create(
      const StatesConfig& config, const StateSealer& sealer, StateMetrics& metrics,
      Executor executor, Clock clock = std::chrono::system_clock::now);

  absl::StatusOr<StateBudget::Room> Reserve(const Client& client, int64_t bytes) override {
    const int64_t all = 2 * bytes + static_cast<int64_t>(kMaxRecordHead);
    AFT_RETURN_IF_ERROR(budget_.CheckFits(all));
    AFT_RETURN_IF_ERROR(client_.CheckUp());
    return budget_.Reserve(client, all);
  }
  // Seals on the calling thread. `put` comes from the thread of RedisClient.
  void Put(StateFolder::File file, StateBudget::Room rest, Found put) override;
  // `found` comes from the executor, or from the thread that found no state.
  void Find(const Client& client, const std::string& owner, const std::string& id,
            Found found) override;
  void Describe(const Client& client, const std::string& owner, const std::string& id,
                Found found) override;
  void List(const Client& client, const std::string& owner, const std::string& after, size_t most,
            Listed listed) override;
  void Remove(const Client& client, const std::string& owner, const std::string& id,
              Done done) override;
  void Expire() override { client_.Expire(); }

 private:
  RedisStates(const StatesConfig& config, const StateSealer& sealer, StateMetrics& metrics,
              Executor executor, Clock clock);

  std::string KeyOf(const std::string& id) const { return config_.prefix + "s:" + id; }
  // The command that reads the beginning of the state's record.
  RedisCommand HeadOf(const std::string& id) const;
  // EVAL of the prelude and the script, with the keys that all scripts share.
  RedisCommand Script(const char* script, const std::string& client, const std::string& id,
                      std::vector<std::string> arguments) const;
  // Returns OK, or an error that a client may see if there are no replies.
  absl::Status Check(const RedisClient::Replies& replies);
  absl::Status Unknown();
  // Reads `head`, the beginning of the record of `id`.
  absl::StatusOr<StoredState> Read(const std::string& owner, const std::string& id,
                                   const std::string& head);
  // The record was not sealed with our keys, or was sealed as something else.
  void Refused(const std::string& id, const absl::Status& why);
  // Finds a state. Starts again, until `deadline`, if another record replaces the one that is being
  // read.
  void FindUntil(TimePoint deadline, const Client& client, const std::string& owner,
                 const std::string& id, Found found);
  void FindWhole(TimePoint deadline, const Client& client, const std::string& owner,
                 const StoredState& stored, int64_t size, const Found& found);
  // Lists states. Starts again after a page of which nothing is left, but sends nothing after
  // `deadline`.
  void ListUntil(TimePoint deadline, const std::string& client, const std::string& owner,
                 const std::string& after, size_t most, Listed listed);
  int64_t Now() const;  // ms since 1970

  const RedisConfig config_;
  const StateSealer& sealer_;
  StateMetrics& metrics_;
  const Executor executor_;
  const Clock clock_;
  StateBudget budget_;
  RateLimit warnings_{1};
  RedisClient client_;  // last: its thread uses all of the above
};

}  // namespace aft::server
