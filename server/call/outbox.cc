#include "server/call/outbox.h"

#include <algorithm>
#include <chrono>

#include "base/catching.h"
#include "server/call/carrier.h"
#include "server/call/deadline.h"
#include "server/call/outcome_sum.h"
#include "server/states/state_access.h"

namespace aft::server {

Outbox::Outbox(const CallEnvironment& environment, Exchange& exchange)
    : most_pending_(static_cast<size_t>(environment.limits.max_stream_buffer_bytes)),
      exchange_(exchange),
      memory_refusals_(environment.metrics.memory_refusals),
      undelivered_(environment.metrics.undelivered_bytes) {}

// ---- Memory -------------------------------------------------------------------------------------

void Outbox::Open(MemoryLedger::Charge charge) {
  MutexLock lock(mutex_);
  charge_ = std::move(charge);
}

bool Outbox::Hold(size_t bytes) {
  MutexLock lock(mutex_);
  request_bytes_ = bytes;
  return charge_.Resize(static_cast<int64_t>(bytes + exchange_.held_bytes()));
}

bool Outbox::HoldMore(size_t bytes) {
  MutexLock lock(mutex_);
  return charge_.Resize(charge_.bytes() + static_cast<int64_t>(bytes));
}

std::pair<size_t, bool> Outbox::Need() const {
  MutexLock lock(mutex_);
  const size_t bytes = request_bytes_ + exchange_.held_bytes();
  return {bytes, charge_.MayEverHold(static_cast<int64_t>(bytes))};
}

bool Outbox::Recharge() {
  return HoldUnsent(request_bytes_, exchange_.held_bytes() + sending_bytes_, charge_, undelivered_);
}

// ---- The client ---------------------------------------------------------------------------------

std::optional<RequestHandle> Outbox::Cancel(const absl::Status& why) {
  MutexLock lock(mutex_);
  // The client keeps an answer that it may have already, with its states. Only the transport knows
  // whether the answer was lost.
  if (taken_all_ && (absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why))) {
    return std::nullopt;
  }
  if (!cancelled_) {
    cancelled_with_ = why;
    cancelled_at_ = std::chrono::steady_clock::now();
  }
  cancelled_ = true;
  // Before the engine has the request, another thread may be decoding it: see Accepted.
  if (!handle_.has_value() || taken_all_) return std::nullopt;
  DropPending();
  return handle_;
}

bool Outbox::IsDeadline(TimePoint arrival, TimePoint deadline) const {
  return absl::IsCancelled(cancelled_with_) && EndedByDeadline(cancelled_at_, arrival, deadline);
}

Ending Outbox::WhyCancelled(TimePoint arrival, TimePoint deadline) const {
  MutexLock lock(mutex_);
  if (!cancelled_) return Ending::kError;
  if (IsDeadline(arrival, deadline)) return Ending::kDeadline;
  if (cancelled_with_ == SlowClient()) return Ending::kSlowClient;
  switch (cancelled_with_.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return Ending::kCancelled;
    case absl::StatusCode::kUnavailable:
      return Ending::kShutdown;
    default:
      return Ending::kError;
  }
}

void Outbox::DropPending() {
  exchange_.Drop();
  hand_over_ = std::string();
  Recharge();
}

absl::Status Outbox::CheckClient() const {
  MutexLock lock(mutex_);
  return cancelled_ ? absl::CancelledError("the client cancelled the request") : absl::OkStatus();
}

bool Outbox::ended_early() const {
  MutexLock lock(mutex_);
  return cancelled_ || failed_;
}

// ---- The engine's side --------------------------------------------------------------------------

bool Outbox::Accepted(RequestHandle first) {
  MutexLock lock(mutex_);
  handle_ = first;
  if (cancelled_ && !taken_all_) DropPending();
  return cancelled_ || failed_;
}

void Outbox::Begin() {
  MutexLock lock(mutex_);
  if (first_ != First::kKept) return;
  first_ = exchange_.has_first_message() ? First::kMayLeave : First::kSent;
}

bool Outbox::IsBehind() const { return exchange_.pending_bytes() > most_pending_; }

absl::Status Outbox::Overflow(bool behind) {
  failed_ = true;
  exchange_.Drop();
  Recharge();
  if (behind) return absl::ResourceExhaustedError(exchange_.too_much());
  memory_refusals_.Increment();
  return NoMemory("no room for an answer that is not read");
}

void Outbox::SetHandOver(std::string sealed) {
  MutexLock lock(mutex_);
  if (!cancelled_) hand_over_ = std::move(sealed);
}

Outbox::SequenceEnd Outbox::EndSequence(const Outcome& outcome, uint32_t sequence,
                                        std::optional<v1::State> stored) {
  MutexLock lock(mutex_);
  if (stored.has_value()) unknown_states_.push_back(stored->id());
  computed_tokens_ += outcome.computed_tokens;
  const bool last = ++ended_ == sequences_;
  if (sequences_ == 1) {
    stored_ = std::move(stored);
    outcome_ = outcome;
    return {.last = true, .message_bytes = exchange_.last_message_bytes()};
  }
  if (total_.status.ok() && absl::IsInternal(outcome.status)) {
    failed_path_ = exchange_.TextPath(sequence);
  }
  // The first error cancels all sequences. Their own ends are errors too, and cancel nothing again.
  // If the client has cancelled the call, all of them are being cancelled already.
  const bool cancels = !last && !cancelled_ && total_.status.ok() && !outcome.status.ok();
  AddOutcome(outcome, total_);
  if (outcome.status.ok() && !cancelled_ && !failed_) {
    exchange_.AppendFinished(outcome, sequence, stored.has_value() ? &*stored : nullptr);
    Recharge();
  }
  failed_ = failed_ || !outcome.status.ok();
  if (last) outcome_ = total_;
  return {.last = last,
          .message_bytes = last ? exchange_.last_message_bytes() : 0,
          .others = cancels ? handle_ : std::nullopt};
}

void Outbox::EndCall(Outcome outcome) {
  MutexLock lock(mutex_);
  outcome_ = std::move(outcome);
}

// ---- The carrier's side -------------------------------------------------------------------------

Outbox::Next Outbox::Take() {
  MutexLock lock(mutex_);
  const size_t held = exchange_.held_bytes();
  const bool failed = outcome_.has_value() && !outcome_->status.ok();
  Next next = Next::kMessage;
  sending_bytes_ = 0;
  std::string state;
  if (first_ == First::kMayLeave && !failed) {
    first_ = First::kSent;
  } else if (first_ == First::kSent && exchange_.Take(state)) {
    sending_bytes_ = held - exchange_.held_bytes();
  } else if (first_ != First::kSent || !outcome_.has_value() || !TakeHandOver()) {
    next = outcome_.has_value() ? Next::kEnd : Next::kNothing;
    taken_all_ = outcome_.has_value();
  }
  if (!state.empty()) {
    unknown_states_.erase(std::remove(unknown_states_.begin(), unknown_states_.end(), state),
                          unknown_states_.end());
  }
  Recharge();
  return next;
}

bool Outbox::TakeHandOver() {
  if (handed_over_ >= hand_over_.size()) return false;
  exchange_.SetHandOver(hand_over_.substr(handed_over_, kStateChunkBytes));
  handed_over_ += kStateChunkBytes;
  return true;
}

absl::Status Outbox::FinalStatus(TimePoint arrival, TimePoint deadline) const {
  MutexLock lock(mutex_);
  const absl::Status& status = outcome_->status;
  const bool only_cancelled = absl::IsCancelled(status) || absl::IsAborted(status);
  // Even a call that ended well has lost the parts that Cancel dropped.
  if (!cancelled_ || !(status.ok() || only_cancelled)) return status;
  return IsDeadline(arrival, deadline) ? absl::DeadlineExceededError(cancelled_with_.message())
                                       : cancelled_with_;
}

std::vector<std::string> Outbox::Close(bool told_all) {
  std::vector<std::string> lost;
  MutexLock lock(mutex_);
  charge_.Close();
  undelivered_.Set(0);
  // A single sequence has its only Finished in the last message, which goes with the status. A
  // client that did not cancel therefore has it.
  if (cancelled_ || (sequences_ > 1 && !told_all)) lost.swap(unknown_states_);
  return lost;
}

}  // namespace aft::server
