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
  using Room = StateBudget::Room;

  // Longest id that clients know.
  static constexpr size_t kIdBytes = 32;

  // kIdBytes of 0-9 and a-f.
  static std::string NewId();

  // The name under which the resume point of that id is kept: longer than every id that a request
  // can ask for, and behind all of them in their order. Lists leave it out.
  static std::string ResumePointName(const std::string& id) { return "r" + id; }
  // What the log may say of a name: who knows all of an id may use the state, and its beginning is
  // enough to find the file.
  static std::string ShownName(absl::string_view name) {
    return absl::StrCat(name.substr(0, 8), "*");
  }
  // Whether it is such a name, or a state's id.
  static bool IsName(absl::string_view name);

  // `metrics` must outlive every state. REQUIRES: config.max_bytes > 0.
  StateStore(const StatesConfig& config, StateMetrics& metrics,
             std::function<TimePoint()> clock = std::chrono::steady_clock::now);

  // As StateBudget::Reserve, once what has expired is gone.
  absl::StatusOr<Room> Reserve(const Client& client, int64_t bytes);

  // Takes the place of what the owner has under that id.
  StoredState Put(const std::string& owner, const std::string& id, const std::string& model,
                  std::shared_ptr<const SequenceState> state, std::chrono::milliseconds ttl);

  // NOT_FOUND: unknown, or, while that is remembered, expired. What was found lives on, and takes
  // its place in the budget, for as long as somebody has it.
  absl::StatusOr<StoredState> Find(const std::string& owner, const std::string& id);

  // NOT_FOUND as Find.
  absl::Status Delete(const std::string& owner, const std::string& id);

  // The owner's, in the order of ids: at most `most`, behind the id `after`.
  std::vector<StoredState> List(const std::string& owner, const std::string& after, size_t most);

  // Lets go of what has expired; every other call does so too.
  void Expire();

 private:
  using Key = std::pair<std::string, std::string>;  // owner, id
  using States = std::map<Key, StoredState>;

  static constexpr size_t kRemembered = 4096;  // of the expired

  void ExpireAt(TimePoint now, std::vector<StoredState>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<States::iterator> Look(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
