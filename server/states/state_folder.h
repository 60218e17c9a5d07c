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
#include "server/scheduling/time.h"
#include "server/states/state_sealer.h"

namespace aft::server {

// What a file says of when it expires is by the first clock, for the next process. As long as this
// one runs, files expire by the second one, which cannot be set, as states in memory do.
struct StateFolderClocks {
  std::function<std::chrono::system_clock::time_point()> wall = std::chrono::system_clock::now;
  std::function<TimePoint()> steady = std::chrono::steady_clock::now;
};

// States in a folder, so that they outlive the process. Each is a file ID.state of mode 0600
// (StateStore::IsName):
//
//   "AFTKEPT1" | when it expires, in ms since 1970 | client | owner | model | sealed state
//
// with a line feed after each but the last. The id and the lines are under the seal. Files appear
// whole or not at all; what is damaged or of another key is left alone, for whoever has the key.
// Thread-safe. A thread of its own writes and removes, in the order of the calls: no other waits
// for the disk.
class StateFolder {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // When a file may expire, in ms since 1970: until the year 2248. Times until then can be told in
  // nanoseconds.
  static constexpr int64_t kLatest = int64_t{1} << 43;
  // Removals that may wait.
  static constexpr size_t kMostRemovals = 2048;

  struct File {
    std::string id;
    std::string client;  // whose budget it takes
    std::string owner;
    std::string model;
    std::chrono::milliseconds ttl{};  // from now
    std::shared_ptr<const SequenceState> state{};

    // That it can be written in lines, under its name. INTERNAL: it cannot.
    absl::Status Check() const;
  };

  // Takes the folder for this object alone, and removes what a crash left half written. Errors name
  // it; FAILED_PRECONDITION: another server uses it. The sealer and metrics must outlive the
  // object.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path,
                                                           const StateSealer& sealer,
                                                           StateMetrics& metrics,
                                                           StateFolderClocks clocks = {});
  // Does all that was asked for, then returns.
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  // FAILED_PRECONDITION: the file system could not hold so many bytes if it held nothing else. One
  // that has not as many left is logged.
  absl::Status CheckSpace(int64_t bytes) const;

  // Hands out what the folder holds, in the order of ids, for `max_ttl` at most, and removes what
  // has expired. Files of more than `max_bytes`, those that cannot be opened and those that `take`
  // refuses are logged, counted and left there. Of these, the last go when their time is over.
  void Load(int64_t max_bytes, std::chrono::milliseconds max_ttl,
            const std::function<absl::Status(File)>& take);

  // `done`, on the folder's thread: the state is on the disk, or the error, and no file is left but
  // that of an earlier state of this id, which the new one takes the place of.
  void Write(File file, Done done);

  // `done`, on the folder's thread: there is no such file. The error: there is, or may be, until
  // its time is over; on this thread, when kMostRemovals wait, as behind a disk that does not
  // answer: UNAVAILABLE. A loss of power soon afterwards may bring the file back.
  void Remove(const std::string& id, Done done);

  // Has the folder's thread remove what has expired, unless it is written again before that.
  void Expire();

 private:
  StateFolder(std::string path, int lock, const StateSealer& sealer, StateMetrics& metrics,
              StateFolderClocks clocks);

  // Of the files of states that are there.
  std::vector<std::string> Ids() const;
  void Add(std::function<void()> task);
  void Run();
  int64_t Now() const;  // ms since 1970
  std::string PathOf(absl::string_view id) const;
  absl::Status WriteNow(const File& file, int64_t expires, TimePoint over);
  absl::Status RemoveNow(const std::string& id);
  void RemoveExpired(const std::string& id);
  absl::StatusOr<File> Read(const std::string& id, int64_t max_bytes) const;

  const std::string path_;
  const int lock_;  // open file, locked
  const StateSealer& sealer_;
  StateMetrics& metrics_;
  const StateFolderClocks clocks_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t removals_ ABSL_GUARDED_BY(mutex_) = 0;                        // of tasks_
  std::map<std::string, TimePoint> expiries_ ABSL_GUARDED_BY(mutex_);  // by id, of the files
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
