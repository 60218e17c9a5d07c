#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/call/call_ids.h"
#include "server/call/decode_pool.h"
#include "server/config/client.h"
#include "server/engine/resume_point.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/states/state_access.h"

namespace aft::server {

// Keeps what a resumable stream leaves: resume points under an id of its own, and a last state when
// the stream is handed over. States are made, sealed and written on other threads than the
// engine's. If a state cannot be written, the stream still continues. "Resume points" in
// server/states/README.md says why the state before the newest one is written. Thread-safe.
class StreamKeeper : public ResumePointSink, public std::enable_shared_from_this<StreamKeeper> {
 public:
  // The objects that the keepers of all streams share. They outlive the calls. But a server that
  // ends frees the pool before the states, which complete their writes only then.
  struct Environment {
    StateAccess& states;
    DecodePool& decoders;
    StateMetrics& metrics;
  };

  // `text`: the text of the stream so far. `start`: the state that the stream begins from, which is
  // kept under `old_id`, or null.
  StreamKeeper(const Environment& environment, std::shared_ptr<const Client> client,
               std::string model, SequenceState text, std::shared_ptr<const SequenceState> start,
               std::string old_id, CallIds ids);

  // The unique id of its resume points.
  const std::string& id() const { return id_; }

  // The stream begins: writes its start. Is called before all other functions. Does not block.
  void KeepStart();

  // ResumePointSink
  bool Ready() override;
  void OnResumePoint(ResumePoint point) override;

  // Takes the last resume point. Calls `done` once, on another thread. It gets the sealed state if
  // `seal`; otherwise it gets "" when the state is written, or, with key_files, the sealed state if
  // it cannot be written. An error means that the state is lost.
  using HandedOver = std::function<void(absl::StatusOr<std::string>)>;
  void HandOver(ResumePoint point, bool seal, HandedOver done);

  // No client will resume this stream. If `old`, no client will resume the stream that this one
  // continues.
  void Forget(bool old);

 private:
  struct Task {
    bool start = false;  // only the start is to be written
    ResumePoint point{};
    bool seal = false;
    HandedOver done{};  // set only for the last resume point

    bool is_resume_point() const { return !start && !done; }  // not the last one
  };
  // A state that is to be written. `number`: the position of its task in the order of tasks.
  struct Made {
    SequenceState state;
    uint64_t number = 0;
    HandedOver done{};
  };

  void Add(Task task);
  void Work();
  absl::StatusOr<std::string> Seal(const SequenceState& state) const;
  // Returns a callback for the write of the last state. If the write fails and there are key_files,
  // so that other servers can open the state, the callback seals a copy and gives it to `done`.
  HandedOver SealUnlessPut(const SequenceState& state, const HandedOver& done);
  absl::StatusOr<SequenceState> Make(ResumePoint point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_mutex_);
  // Returns the state to write now, if there is one.
  std::optional<SequenceState> Turn(SequenceState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_mutex_);
  // A state is skipped if a newer one is written or waits to be written.
  void Write(Made made);
  // The place has written the state of that number, or has failed. Only the first call counts.
  void Put(const absl::Status& status, uint64_t number, const HandedOver& done);
  void Written(const absl::Status& status, const HandedOver& done);
  // Whether to remove the resume point under old_id_ now; true at most once.
  bool TakeOld() { return !old_id_.empty() && !old_is_gone_.exchange(true); }
  // Removes the resume point of that id, which is id_ or old_id_, on another thread.
  void Remove(const std::string& id);

  const Environment environment_;
  const std::shared_ptr<const Client> client_;
  const std::string model_;
  const std::string id_ = StateAccess::NewResumeId();
  const std::shared_ptr<const SequenceState> start_;
  const std::string old_id_;
  const CallIds ids_;             // for the log
  std::atomic<bool> any_{false};  // a state was written or is about to be
  std::atomic<bool> any_but_start_{false};
  std::atomic<bool> old_is_gone_{false};
  std::atomic<bool> forgotten_{false};

  Mutex work_mutex_;  // held to make states one after another, in order
  // The text so far without a snapshot; null once a part of the text is lost.
  std::shared_ptr<const SequenceState> text_ ABSL_GUARDED_BY(work_mutex_);
  std::optional<SequenceState> last_ ABSL_GUARDED_BY(work_mutex_);  // newest, not written
  uint64_t made_ ABSL_GUARDED_BY(work_mutex_) = 0;                  // number of tasks begun

  Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  int points_ ABSL_GUARDED_BY(mutex_) = 0;            // resume points that wait or are being made
  uint64_t writing_ ABSL_GUARDED_BY(mutex_) = 0;      // number of the state being written, or 0
  uint64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;       // number of the newest state given to Write
  std::optional<Made> next_ ABSL_GUARDED_BY(mutex_);  // waits until that state is written
};

}  // namespace aft::server
