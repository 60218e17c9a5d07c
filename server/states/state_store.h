#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/scheduling/time.h"

namespace aft::server {

// A state that is kept, and what is known of it.
struct StoredState {
  std::string id;
  std::string model;  // its name here
  int64_t bytes = 0;  // of the budget
  TimePoint expires;
  std::shared_ptr<const SequenceState> state;
};

// States in this process's memory, each until its time is over or its owner deletes it: nothing
// else makes one go. They are named by 128 random bits. Whoever asks names an owner, and another
// owner's state is as unknown to it as one that never was; where clients are not known all are of
// the owner
// "", and the id alone gives access. Thread-safe; every call is a short critical section.
class StateStore {
 public:
  // What states may take in all, and of each client. Outlives the store while somebody has a state.
  class Budget {
   public:
    Budget(int64_t total, int64_t per_client, StateMetrics& metrics)
        : total_(total), per_client_(per_client), metrics_(metrics) {}

   private:
    friend class StateStore;

    absl::Status Take(const std::string& client, int64_t bytes);
    void Give(const std::string& client, int64_t bytes);

    const int64_t total_;
    const int64_t per_client_;
    StateMetrics& metrics_;
    Mutex mutex_;
    int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
    std::map<std::string, int64_t> clients_ ABSL_GUARDED_BY(mutex_);  // that use some of it
  };

  // A place in the budget, given back on destruction. Thread-compatible.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room() { Close(); }

    int64_t bytes() const { return bytes_; }

   private:
    friend class StateStore;

    Room(std::shared_ptr<Budget> budget, std::string client, int64_t bytes)
        : budget_(std::move(budget)), client_(std::move(client)), bytes_(bytes) {}
    void ShrinkTo(int64_t bytes);
    void Close() { ShrinkTo(0); }

    std::shared_ptr<Budget> budget_;
    std::string client_;
    int64_t bytes_ = 0;
  };

  // Longest id that is looked up.
  static constexpr size_t kIdBytes = 32;

  // kIdBytes of 0-9 and a-f.
  static std::string NewId();

  // `metrics` must outlive every state. REQUIRES: config.max_bytes > 0.
  StateStore(const StatesConfig& config, StateMetrics& metrics,
             std::function<TimePoint()> clock = std::chrono::steady_clock::now);

  // A place for a state of at most `bytes` that this client is about to have.
  // RESOURCE_EXHAUSTED: the budget, or the client's, is full; says which.
  absl::StatusOr<Room> Reserve(const Client& client, int64_t bytes);

  // INTERNAL: it is larger than `room`. `id`: of one that had it before, else a new one. REQUIRES:
  // no state has it.
  absl::StatusOr<StoredState> Put(Room room, const std::string& owner, const std::string& model,
                                  SequenceState state, std::chrono::milliseconds ttl,
                                  std::string id = NewId());

  // NOT_FOUND: unknown, or, while that is remembered, expired. What was found lives on, and takes
  // its place in the budget, for as long as somebody has it.
  absl::StatusOr<StoredState> Find(const std::string& owner, const std::string& id);

  // NOT_FOUND as Find.
  absl::Status Delete(const std::string& owner, const std::string& id);

  // The owner's, in the order of ids: at most `most`, behind the id `after`.
  std::vector<StoredState> List(const std::string& owner, const std::string& after, size_t most);

  // Lets go of what has expired; every other call does so too.
  void Expire();

  std::chrono::milliseconds TimeLeft(const StoredState& stored) const;

 private:
  using Key = std::pair<std::string, std::string>;  // owner, id
  using States = std::map<Key, StoredState>;

  static constexpr size_t kRemembered = 4096;  // of the expired

  void ExpireAt(TimePoint now, std::vector<StoredState>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<States::iterator> Look(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(States::iterator stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Budget> budget_;
  StateMetrics& metrics_;
  const std::function<TimePoint()> clock_;

  Mutex mutex_;
  States states_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<TimePoint, Key>> expiries_ ABSL_GUARDED_BY(mutex_);
  std::set<Key> expired_ ABSL_GUARDED_BY(mutex_);
  std::deque<Key> expired_order_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace aft::server
