#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/time.h"
#include "server/states/state_sealer.h"

namespace aft::server {

// The expiry in a file is a time of `wall`, so that the next process can use it. While this process
// runs, files expire by `steady`, which cannot be set, as states in memory do.
struct StateFolderClocks {
  std::function<std::chrono::system_clock::time_point()> wall = std::chrono::system_clock::now;
  std::function<TimePoint()> steady = std::chrono::steady_clock::now;
};

// Keeps states in a folder, so that they outlive the process. Each is a file ID.state of mode 0600
// (StateStore::IsName):
//
//   "AFTKEPT1" | when it expires, in ms since 1970 | client | owner | model | sealed state
//
// with a line feed after each but the last. The seal covers the id and the lines. Files appear
// whole or not at all. A file that is damaged or sealed with another key stays, so that a server
// with the key can use it. A thread of its own writes and removes files, in the order of the calls,
// so that no other thread waits for the disk. Thread-safe.
class StateFolder {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // The latest expiry of a file, in ms since 1970: in the year 2248. Until then times fit into
  // nanoseconds.
  static constexpr int64_t kLatest = int64_t{1} << 43;
  // The number of removals that may wait.
  static constexpr size_t kMostRemovals = 2048;

  struct File {
    std::string id;
    std::string client;  // the client whose budget it uses
    std::string owner;
    std::string model;
    std::chrono::milliseconds ttl{};  // from now
    std::shared_ptr<const SequenceState> state{};

    // INTERNAL if a name cannot be a line of the file, or if the id cannot be its name.
    absl::Status Check() const;
  };

  // Locks the folder for this object alone, and removes files that a crash left half-written.
  // Errors name the folder; FAILED_PRECONDITION: another server uses it. The sealer and metrics
  // must outlive the object.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path,
                                                           const StateSealer& sealer,
                                                           StateMetrics& metrics,
                                                           StateFolderClocks clocks = {});
  // Completes all tasks, then returns.
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  // FAILED_PRECONDITION if the file system is smaller than `bytes`. If it only has less free space
  // than that, the log has a line.
  absl::Status CheckSpace(int64_t bytes) const;

  // Passes the states in the folder to `take`, in the order of ids, with a `ttl` of at most
  // `max_ttl`, and removes files that have expired. Files of more than `max_bytes`, files that
  // cannot be opened and states that `take` refuses are logged and counted, and stay. The files of
  // refused states are removed when they expire.
  void Load(int64_t max_bytes, std::chrono::milliseconds max_ttl,
            const std::function<absl::Status(File)>& take);

  // Calls `done` on the folder's thread. OK: the state is on the disk. After an error there is no
  // file, except perhaps one of an earlier state of this id, which the new one was to replace.
  void Write(File file, Done done);

  // Calls `done` on the folder's thread. OK: the file does not exist any more. After an error it
  // may exist until it expires. If kMostRemovals wait, for example because the disk does not
  // answer, `done` gets UNAVAILABLE on the calling thread. If the machine loses power soon
  // afterwards, the file may exist again.
  void Remove(const std::string& id, Done done);

  // Lets the folder's thread remove expired files, unless they are written again before that. If a
  // file cannot be removed, for example because the disk is full or read-only, a call a minute
  // later tries again.
  void Expire();

 private:
  static constexpr TimePoint kQueued = TimePoint::max();

  StateFolder(std::string path, int lock, const StateSealer& sealer, StateMetrics& metrics,
              StateFolderClocks clocks);

  // The ids of the state files in the folder.
  std::vector<std::string> Ids() const;
  void Add(std::function<void()> task);
  void Run();
  int64_t Now() const;  // ms since 1970
  std::string PathOf(absl::string_view id) const;
  absl::Status WriteNow(const File& file, int64_t expires, TimePoint over);
  absl::Status RemoveNow(const std::string& id);
  // If the file cannot be removed, it expires again at `again`.
  void RemoveExpired(const std::string& id, TimePoint again);
  absl::StatusOr<File> Read(const std::string& id, int64_t max_bytes) const;

  const std::string path_;
  const int lock_;  // open file, locked
  const StateSealer& sealer_;
  StateMetrics& metrics_;
  const StateFolderClocks clocks_;
  RateLimit remove_errors_{1};

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t removals_ ABSL_GUARDED_BY(mutex_) = 0;  // removals in tasks_
  // By id, when each file expires; kQueued: it has expired, and a task of tasks_ removes it.
  std::map<std::string, TimePoint> expiries_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
