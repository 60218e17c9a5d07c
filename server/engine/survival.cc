// What GenerateEngine does with the states of streams: it parks and stores them, and leaves them
// behind so that streams survive their server.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/engine/generate_engine.h"
#include "server/observability/log.h"

namespace aft::server {

// RESOURCE_EXHAUSTED: there is no memory for it; DATA_LOSS: the device failed.
absl::StatusOr<std::string> GenerateEngine::Snapshot(int32_t slot) const {
  std::string snapshot;
  AFT_RETURN_IF_ERROR(Catching([&] {
    snapshot = runner_->SnapshotSlot(slot);
    return snapshot.empty() ? absl::DataLossError("no snapshot") : absl::OkStatus();
  }));
  return snapshot;
}

void GenerateEngine::Park(TokenStream& stream, int32_t slot) {
  metrics_.parks.Increment();
  absl::StatusOr<std::string> snapshot = Snapshot(slot);
  if (!snapshot.ok()) return StateLost(stream, "engine.park_failed", snapshot.status());
  stream.snapshot = *std::move(snapshot);
}

void GenerateEngine::Unpark(TokenStream& stream) {
  const absl::Status status = Catching([&] {
    return runner_->RestoreSlot(stream.slot(), stream.snapshot, stream.sampling).status();
  });
  stream.snapshot = {};
  if (status.ok()) return metrics_.resumes.Increment();
  StateLost(stream, "engine.resume_failed", status);
}

// What the slot holds of a stream that has ended: no step names it any more. Errors as Snapshot.
absl::StatusOr<std::shared_ptr<TurnEnd>> GenerateEngine::TakeTurn(TokenStream& stream) {
  std::shared_ptr<TurnEnd> turn = std::move(stream.end);
  turn->previous = stream.previous;
  turn->model = info_.fingerprint;
  const uint64_t before = turn->previous != nullptr ? turn->previous->outputs : 0;
  // Without penalties, whatever these were, and without a token that is no part of the output.
  AFT_RETURN_IF_ERROR(
      runner_->ContinueSlot(stream.slot(), SamplingParams(), before + turn->outputs.size(), {}));
  AFT_ASSIGN_OR_RETURN(turn->snapshot, Snapshot(stream.slot()));
  return turn;
}

// Ends the stream.
void GenerateEngine::StateLost(TokenStream& stream, const char* event, const absl::Status& error) {
  metrics_.failures(EngineFailure::kStateLost).Increment();
  log::Error(event, {{"model", options_.model.name},
                     {"id", stream.id},
                     {"error", error.ToString()},
                     {"trace_id", stream.trace_id}});
  Outcome outcome;
  outcome.no_memory = absl::IsResourceExhausted(error);
  outcome.status =
      outcome.no_memory
          ? OutOfMemory()
          : absl::InternalError(absl::StrCat("request ", stream.id, ": its state was lost"));
  End(stream, std::move(outcome), Now());
}

// At most one begins in a step, so that no step is much longer for them.
void GenerateEngine::LeaveResumePoint(TokenStream& stream) {
  const Survival& survival = stream.survival;
  if (survival.interval == 0 || stream.position() < stream.next_point) return;
  if (!stream.sits_out) {
    if (std::exchange(left_point_, true)) return;
    if (!survival.sink->Ready()) {
      stream.next_point = stream.position() + survival.interval;
      return;
    }
  }
  stream.sits_out = stream.flights() > 0;
  if (stream.sits_out) return ContinuousScheduler::Pause(stream);
  stream.next_point = stream.position() + survival.interval;
  absl::StatusOr<std::string> snapshot = Snapshot(stream.slot());
  if (!snapshot.ok()) return;  // the next one may succeed; of a device that fails, its steps say so
  survival.sink->OnResumePoint({*std::move(snapshot), std::exchange(stream.unsaved, {})});
}

// Of a prompt nothing is left behind: whoever goes on with it reads it again.
void GenerateEngine::Leave(Job& job, TimePoint now) {
  auto& stream = static_cast<TokenStream&>(job);
  if (!stream.survival.resumable) return;
  Outcome outcome;
  outcome.status = absl::UnavailableError("the server is draining: resume the stream elsewhere");
  if (stream.survival.sink != nullptr && stream.prompt_left() == 0) {
    if (stream.flights() > 0) return ContinuousScheduler::Pause(stream);
    absl::StatusOr<std::string> snapshot = stream.slot() < 0
                                               ? std::move(stream.snapshot)  // it is parked
                                               : Snapshot(stream.slot());
    if (snapshot.ok() && !snapshot->empty()) {
      outcome.hand_over = std::make_shared<ResumePoint>(
          ResumePoint{*std::move(snapshot), std::move(stream.unsaved)});
    }
  }
  End(stream, std::move(outcome), now);
}

}  // namespace aft::server
