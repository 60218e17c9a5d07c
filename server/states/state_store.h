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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/scheduling/time.h"
#include "server/states/state_budget.h"

namespace aft::server {

// A stored state, and the facts about it.
struct StoredState {
  std::string id;
  std::string model;  // the model's name on this server
  int64_t bytes = 0;  // of the budget
  TimePoint expires;
  std::shared_ptr<const SequenceState> state;
};

// Keeps states in this process's memory. A state is removed only when it expires or its owner
// deletes it. Its id is 128 random bits. The state of another owner is NOT_FOUND, like one that
// never existed. If clients are not known, all states have the owner "", and the id alone gives
// access. Thread-safe; every call is a short critical section.
class StateStore {
 public:
  using Room = StateBudget::Room;

  // The length of the longest id that clients know.
  static constexpr size_t kIdBytes = 32;

  // A random id: kIdBytes of 0-9 and a-f.
  static std::string NewId();

  // The name under which the resume point of that id is kept. It is longer than every id that a
  // request can ask for, and comes after all of them in their order. List leaves it out.
  static std::string ResumePointName(const std::string& id) { return "r" + id; }
  // The part of a name that the log may show. The whole id gives access to the state; its beginning
  // is enough to find the file.
  static std::string ShownName(absl::string_view name) {
    return absl::StrCat(name.substr(0, 8), "*");
  }
  // Whether `name` is a state's id, or the name of a resume point.
  static bool IsName(absl::string_view name);

  // `metrics` must outlive every state. REQUIRES: config.max_bytes > 0.
  StateStore(const StatesConfig& config, StateMetrics& metrics,
             std::function<TimePoint()> clock = std::chrono::steady_clock::now);

  // As StateBudget::CheckFits.
  absl::Status CheckFits(int64_t bytes) const { return budget_.CheckFits(bytes); }
  // As StateBudget::Reserve, after releasing what has expired.
  absl::StatusOr<Room> Reserve(const Client& client, int64_t bytes);

  // Stores the state, in place of the owner's state with that id if there is one.
  StoredState Put(const std::string& owner, const std::string& id, const std::string& model,
                  std::shared_ptr<const SequenceState> state, std::chrono::milliseconds ttl);

  // NOT_FOUND: the state is unknown, or it has expired (which is remembered for a while, so that
  // the message can say so). A state that was found lives, with its place in the budget, as long as
  // a caller holds it.
  absl::StatusOr<StoredState> Find(const std::string& owner, const std::string& id);

  // NOT_FOUND as Find, but not counted as refused: the server also removes states by itself, and
  // they may be gone.
  absl::Status Delete(const std::string& owner, const std::string& id);

  // Returns at most `most` of the owner's states after `after`, in the order of ids.
  std::vector<StoredState> List(const std::string& owner, const std::string& after, size_t most);

  // Releases states that have expired; every other call does so too.
  void Expire();

 private:
  using Key = std::pair<std::string, std::string>;  // owner, id
  using States = std::map<Key, StoredState>;

  static constexpr size_t kRemembered = 4096;  // expired ids that are remembered

  void ExpireAt(TimePoint now, std::vector<StoredState>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasExpired(const Key& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return expired_.count(key) > 0;
  }
  void Remove(States::iterator stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StateBudget budget_;
  StateMetrics& metrics_;
  const std::function<TimePoint()> clock_;

  Mutex mutex_;
  States states_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<TimePoint, Key>> expiries_ ABSL_GUARDED_BY(mutex_);
  std::set<Key> expired_ ABSL_GUARDED_BY(mutex_);
  std::deque<Key> expired_order_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace aft::server
