#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "server/admission/memory_ledger.h"
#include "server/call/call_environment.h"
#include "server/call/exchange.h"
#include "server/engine/request.h"
#include "server/observability/metrics.h"
#include "server/scheduling/time.h"

namespace aft::server {

// What a call holds between its engine and its client: what is pending of the answer, the memory
// that is charged for it and for the request, whether the client is still there, and how the
// sequences have ended. An engine adds on one thread, a carrier takes on another. Thread-safe.
class Outbox {
 public:
  // Both must outlive this. What is pending in `exchange` is guarded by the outbox from now on.
  Outbox(const CallEnvironment& environment, Exchange& exchange);

  // ---- Memory.

  // What the client is charged with from now on. REQUIRES: nothing is, yet.
  void Open(MemoryLedger::Charge charge);
  // Charges for a request that takes `bytes`, in place of what was charged for it, and for what the
  // exchange holds of the answer. False: there is no room.
  bool Hold(size_t bytes);
  // The same of so many bytes more.
  bool HoldMore(size_t bytes);
  // What is charged for, and whether there could ever be room for that.
  std::pair<size_t, bool> Need() const;

  // ---- The client.

  // The client is gone: what is pending goes, and nothing is added any more. `why`: what the call
  // ends with; the first one counts. Returns what the engine is to cancel.
  std::optional<RequestHandle> Cancel(const absl::Status& why);
  // CANCELLED once that was called.
  absl::Status CheckClient() const;
  // Whether nobody would learn of a state that is stored now: the call was cancelled, or a sequence
  // has failed.
  bool ended_early() const;

  // ---- The engine's side.

  // It has accepted the request. `first`: of `sequences` handles that follow one another. True:
  // they are to be cancelled, as they could not be before.
  bool Accepted(RequestHandle first);
  void ExpectSequences(uint32_t sequences) { sequences_ = sequences; }
  // The engine begins with a sequence.
  void Begin();
  // Adds a part of the answer. RESOURCE_EXHAUSTED: too much is unread; what was pending is gone.
  template <typename Part>
  absl::Status Offer(Part part, uint32_t sequence) {
    MutexLock lock(mutex_);
    if (cancelled_ || failed_) return absl::OkStatus();  // the engine has been told, or will be
    const bool behind = IsBehind();
    if (!behind) exchange_.Append(std::move(part), sequence);
    if (!behind && Recharge()) return absl::OkStatus();
    return Overflow(behind);
  }
  // The sealed state that a stream leaves its client. REQUIRES: it has not ended.
  void SetHandOver(std::string sealed);
  struct SequenceEnd {
    size_t message_bytes = 0;                  // of the last message, where no sequence is left
    std::optional<RequestHandle> others = {};  // that the engine is to cancel for it
  };
  // A sequence has ended; `stored`: what it has left behind.
  SequenceEnd EndSequence(const Outcome& outcome, uint32_t sequence,
                          std::optional<v1::State> stored);
  // The call ends without an engine.
  void EndCall(Outcome outcome);

  // ---- The carrier's side.

  enum class Next { kNothing, kMessage, kEnd };
  // Makes outgoing() of the exchange the next message. After kEnd the exchange belongs to the
  // caller alone.
  Next Take();

  // Once Take has returned kEnd:
  const Outcome& outcome() const { return *outcome_; }
  const v1::State* stored() const { return stored_.has_value() ? &*stored_ : nullptr; }
  uint64_t computed_tokens() const { return computed_tokens_; }
  const std::string& failed_path() const { return failed_path_; }
  bool begun() const { return first_ == First::kSent; }
  // The first message need not have left.
  bool engine_began() const { return first_ != First::kKept; }
  // What the call ends with: the outcome's, unless that only says that it was cancelled.
  absl::Status FinalStatus(TimePoint arrival, TimePoint deadline) const;

  // The client is served, or gone: nothing is charged any more. `told_all`: the last message has
  // told of all sequences. Returns the ids of stored states that the client has not heard of.
  std::vector<std::string> Close(bool told_all);

 private:
  bool IsBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Overflow(bool behind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is charged follows what is held, and so does the metric. False: there is no room.
  bool Recharge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeHandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_pending_;  // bytes
  Exchange& exchange_;
  uint32_t sequences_ = 1;  // set before the engine has the request

  mutable Mutex mutex_;
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
  size_t request_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of charge_
  size_t sending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of charge_: of the message under way
  GaugePart undelivered_ ABSL_GUARDED_BY(mutex_);     // of what is pending and being sent
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cancelled_with_ ABSL_GUARDED_BY(mutex_);
  TimePoint cancelled_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<RequestHandle> handle_ ABSL_GUARDED_BY(mutex_);  // of the first sequence
  bool taken_all_ ABSL_GUARDED_BY(mutex_) = false;  // the exchange is the carrier's from now on
  uint32_t ended_ ABSL_GUARDED_BY(mutex_) = 0;      // sequences
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;     // a sequence has: nothing is taken any more
  Outcome total_ ABSL_GUARDED_BY(mutex_);           // of several sequences, those that have ended
  // States that are stored, and whose Finished has not left.
  std::vector<std::string> unknown_states_ ABSL_GUARDED_BY(mutex_);
  std::string hand_over_ ABSL_GUARDED_BY(mutex_);  // sealed
  size_t handed_over_ ABSL_GUARDED_BY(mutex_) = 0;

  // Guarded by mutex_ until Take has returned kEnd, then constant.
  enum class First { kKept, kMayLeave, kSent } first_ = First::kKept;
  std::optional<Outcome> outcome_;
  std::optional<v1::State> stored_;  // of a single sequence
  uint64_t computed_tokens_ = 0;     // of all sequences
  std::string failed_path_;          // of the first text that failed by a defect
};

}  // namespace aft::server
