#include "server/call/stream_keeper.h"

#include <chrono>
#include <utility>

#include "base/catching.h"
#include "base/status_macros.h"
#include "server/call/call_ids.h"
#include "server/observability/log.h"
#include "server/observability/rate_limit.h"

namespace aft::server {
namespace {

void LogFailure(const CallIds& ids, const absl::Status& status) {
  static RateLimit& limit = *new RateLimit(1);
  if (const auto left_out = limit.Pass(std::chrono::steady_clock::now())) {
    log::Warning("checkpoint.failed", {{"id", ids.request},
                                       {"error", status.ToString()},
                                       {"left_out", *left_out},
                                       {"trace_id", ids.trace.trace_id}});
  }
}

}  // namespace

StreamKeeper::StreamKeeper(const Environment& environment, std::shared_ptr<const Client> client,
                           std::string model, SequenceState text,
                           std::shared_ptr<const SequenceState> start, std::string old_id,
                           CallIds ids)
    : environment_(environment),
      client_(std::move(client)),
      model_(std::move(model)),
      start_(std::move(start)),
      old_id_(std::move(old_id)),
      ids_(std::move(ids)),
      text_(std::make_shared<const SequenceState>(std::move(text))) {}

void StreamKeeper::KeepStart() {
  if (start_ != nullptr) Add({.start = true});
}

bool StreamKeeper::Ready() {
  MutexLock lock(mutex_);
  if (points_ == 0 && writing_ == 0) return true;
  environment_.metrics.checkpoints_skipped.Increment();
  return false;
}

void StreamKeeper::OnResumePoint(ResumePoint point) { Add({.point = std::move(point)}); }

void StreamKeeper::HandOver(ResumePoint point, bool seal, HandedOver done) {
  Add({.point = std::move(point), .seal = seal, .done = std::move(done)});
}

void StreamKeeper::Add(Task task) {
  const KeptState* const kept = task.point.state.get();
  const size_t bytes = kept != nullptr ? static_cast<size_t>(kept->bytes()) : 0;
  {
    MutexLock lock(mutex_);
    if (task.is_resume_point()) ++points_;
    tasks_.push_back(std::move(task));
  }
  environment_.decoders.Add(*client_, bytes, [self = shared_from_this()] { self->Work(); });
}

void StreamKeeper::Work() {
  Task task;
  absl::StatusOr<SequenceState> state;
  std::optional<SequenceState> turn;
  uint64_t number = 0;
  bool is_resume_point = false;
  {
    MutexLock work(work_mutex_);
    number = ++made_;
    {
      MutexLock lock(mutex_);
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    is_resume_point = task.is_resume_point();
    // This is the last task. SealUnlessPut may copy its state, and the copy takes the room of
    // last_.
    if (task.done) last_.reset();
    const absl::Status made = Catching([&] {
      state = task.start ? absl::StatusOr<SequenceState>(*start_) : Make(std::move(task.point));
      if (state.ok() && task.done && !task.seal) task.done = SealUnlessPut(*state, task.done);
      return state.status();
    });
    if (!made.ok()) state = made;
    if (!state.ok() && !task.start) text_ = nullptr;
    if (state.ok() && !task.done) turn = Turn(*std::move(state));
  }
  if (!state.ok()) {  // NOLINT(bugprone-use-after-move): only its value may have been moved
    Written(state.status(), task.done);
  } else if (task.seal) {
    task.done(Seal(*state));
  } else if (task.done) {
    any_ = any_but_start_ = true;
    Write({*std::move(state), number, std::move(task.done)});
  } else if (turn.has_value() && !forgotten_) {
    Write({*std::move(turn), number});
  }
  MutexLock lock(mutex_);
  if (is_resume_point) --points_;
}

absl::StatusOr<std::string> StreamKeeper::Seal(const SequenceState& state) const {
  absl::StatusOr<std::string> sealed;
  const absl::Status done = Catching([&] {
    sealed = environment_.states.sealer().Seal(state);
    return absl::OkStatus();
  });
  if (!done.ok()) return done;
  return sealed;
}

StreamKeeper::HandedOver StreamKeeper::SealUnlessPut(const SequenceState& state,
                                                     const HandedOver& done) {
  if (environment_.states.config().key_files.empty()) return done;
  return [self = shared_from_this(), copy = std::make_shared<const SequenceState>(state),
          done](absl::StatusOr<std::string> put) {
    if (put.ok()) return done(std::move(put));
    // This may be the thread that talks to Redis for all clients, and sealing takes milliseconds.
    const absl::Status added = Catching([&] {
      self->environment_.decoders.Add(*self->client_, static_cast<size_t>(StateBytes(*copy)),
                                      [self, copy, done] { done(self->Seal(*copy)); });
      return absl::OkStatus();
    });
    if (!added.ok()) done(added);
  };
}

absl::StatusOr<SequenceState> StreamKeeper::Make(ResumePoint point) {
  if (text_ == nullptr) return absl::InternalError("a part of the text is lost");
  if (point.state == nullptr) return absl::InternalError("the state could not be read");
  SequenceState state = *text_;
  if (!point.outputs.empty()) {
    TurnEnd turn;
    turn.previous = text_;
    turn.model = text_->model;
    turn.outputs = std::move(point.outputs);
    turn.last_is_pending = true;
    AFT_ASSIGN_OR_RETURN(state, MakeState(std::move(turn)));
    text_ = std::make_shared<const SequenceState>(state);
  }
  AFT_ASSIGN_OR_RETURN(state.snapshot, point.state->Snapshot());
  return state;
}

std::optional<SequenceState> StreamKeeper::Turn(SequenceState state) {
  if (!any_.exchange(true)) return state;
  std::optional<SequenceState> turn = std::exchange(last_, std::move(state));
  if (turn.has_value()) any_but_start_ = true;
  return turn;
}

void StreamKeeper::Write(Made made) {
  {
    MutexLock lock(mutex_);
    // Another thread was faster with a newer state. The state of a handover is always the newest.
    if (made.number < newest_) return environment_.metrics.checkpoints_skipped.Increment();
    newest_ = made.number;
    if (writing_ != 0) {
      next_ = std::move(made);
      return;
    }
    writing_ = made.number;
  }
  const absl::Status status = Catching([&] {
    environment_.states.PutResumePoint(
        *client_, model_, id_, std::move(made.state),
        [self = shared_from_this(), number = made.number,
         done = made.done](const absl::Status& put) { self->Put(put, number, done); });
    return absl::OkStatus();
  });
  if (!status.ok()) Put(status, made.number, made.done);
}

void StreamKeeper::Put(const absl::Status& status, uint64_t number, const HandedOver& done) {
  std::optional<Made> next;
  {
    MutexLock lock(mutex_);
    if (writing_ != number) return;
    writing_ = 0;
    next.swap(next_);
  }
  // Any client that has an output after the start knows the new id. The pool may be gone already.
  if (status.ok() && any_but_start_ && TakeOld()) {
    Catching([&] {
      environment_.states.RemoveResumePoint(*client_, old_id_);
      return absl::OkStatus();
    }).IgnoreError();
  }
  Written(status, done);
  if (next.has_value()) Write(*std::move(next));
}

void StreamKeeper::Written(const absl::Status& status, const HandedOver& done) {
  StateMetrics& metrics = environment_.metrics;
  if (!status.ok()) LogFailure(ids_, status);
  if (!done) (status.ok() ? metrics.checkpoints_written : metrics.checkpoints_failed).Increment();
  if (forgotten_) environment_.states.RemoveResumePoint(*client_, id_);
  if (done) done(status.ok() ? absl::StatusOr<std::string>("") : status);
}

// To free a state takes up to milliseconds. On a thread that sends for many clients, that would
// delay all of them.
void StreamKeeper::Remove(const std::string& id) {
  const absl::Status added = Catching([&] {
    environment_.decoders.Add(*client_, 0, [self = shared_from_this(), id] {
      self->environment_.states.RemoveResumePoint(*self->client_, id);
    });
    return absl::OkStatus();
  });
  if (!added.ok()) environment_.states.RemoveResumePoint(*client_, id);
}

void StreamKeeper::Forget(bool old) {
  forgotten_ = true;
  if (any_) Remove(id_);
  if (old && TakeOld()) Remove(old_id_);
}

}  // namespace aft::server
