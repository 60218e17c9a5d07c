#pragma once

#include <atomic>
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

// Keeps what a resumable stream leaves behind: resume points under an id of its own, and what it is
// handed over with. States are made, sealed and written on other threads than the engine's; one
// that cannot be written harms nobody.
//
// A client may lack the last tokens of a stream that breaks, and a state that has them is of no use
// to it. So the one that is kept is the last but one, and twice as many are taken.
//
// Thread-safe.
class StreamKeeper : public ResumePointSink, public std::enable_shared_from_this<StreamKeeper> {
 public:
  // What the keepers of all streams share; outlives them.
  struct Environment {
    StateAccess& states;
    DecodePool& decoders;
    StateMetrics& metrics;
  };

  // `text`: of the stream so far. `start`: the state that it begins from, where it was kept under
  // `old_id`; null: none.
  StreamKeeper(const Environment& environment, std::shared_ptr<const Client> client,
               std::string model, SequenceState text, std::shared_ptr<const SequenceState> start,
               std::string old_id, CallIds ids);

  // Where its resume points are: an id that is no one else's.
  const std::string& id() const { return id_; }

  // The stream begins: keeps its start. Before the rest. Does not block.
  void KeepStart();

  // ResumePointSink
  bool Ready() override;
  void OnResumePoint(ResumePoint point) override;

  // The last one. Calls `done` once, on another thread: with the sealed state if `seal`, else with
  // "" when it is kept. An error: it is lost.
  using HandedOver = std::function<void(absl::StatusOr<std::string>)>;
  void HandOver(ResumePoint point, bool seal, HandedOver done);

  // Nobody will go on with the stream; nor, if `old`, with the one that it goes on with.
  void Forget(bool old);

 private:
  struct Task {
    bool start = false;  // and nothing else
    ResumePoint point{};
    bool seal = false;
    HandedOver done{};  // of the last one
  };

  void Add(Task task);
  void Work();
  absl::StatusOr<SequenceState> Make(ResumePoint point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_mutex_);
  // The one that is to be written now, if there is.
  std::optional<SequenceState> Turn(SequenceState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_mutex_);
  // `number`: of its task, in the order of the tasks. One that is older than what was written, or
  // waits to be, is left out.
  void Write(SequenceState state, uint64_t number, HandedOver done);
  void Written(const absl::Status& status, const HandedOver& done);
  void RemoveOld();

  const Environment environment_;
  const std::shared_ptr<const Client> client_;
  const std::string model_;
  const std::string id_ = StateAccess::NewResumeId();
  const std::shared_ptr<const SequenceState> start_;
  const std::string old_id_;
  const CallIds ids_;             // for the log
  std::atomic<bool> any_{false};  // was written, or is about to be
  std::atomic<bool> any_but_start_{false};
  std::atomic<bool> old_is_gone_{false};
  std::atomic<bool> forgotten_{false};

  Mutex work_mutex_;  // one thread makes states, in order
  // Without a snapshot; null once a part of the text is lost.
  std::shared_ptr<const SequenceState> text_ ABSL_GUARDED_BY(work_mutex_);
  std::optional<SequenceState> last_ ABSL_GUARDED_BY(work_mutex_);  // not written yet
  uint64_t made_ ABSL_GUARDED_BY(work_mutex_) = 0;                  // tasks

  Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;           // a resume point waits, or is made
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;        // one is being put
  uint64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;         // number of the last one for Write
  std::function<void()> next_ ABSL_GUARDED_BY(mutex_);  // waits for that
};

}  // namespace aft::server
