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

// The place of an answer between the engine and the client. It has the pending part of the answer
// and the memory that is charged for it and for the request, and knows whether the client is still
// there and how the sequences have ended. An engine adds on one thread, and a carrier takes on
// another. Thread-safe.
class Outbox {
 public:
  // Both must outlive this object. From Accepted or the first part on, this object's lock guards
  // `exchange`. Before that only the decoding thread uses the exchange; Hold, HoldMore and Need use
  // it on that thread.
  Outbox(const CallEnvironment& environment, Exchange& exchange);

  // ---- Memory.

  // Takes the charge on the client's memory. REQUIRES: it has no charge yet.
  void Open(MemoryLedger::Charge charge);
  // Charges `bytes` for the request, in place of the earlier charge, and in addition what the
  // exchange holds of the answer. Returns false if there is no room.
  bool Hold(size_t bytes);
  // Charges `bytes` more. Returns false if there is no room.
  bool HoldMore(size_t bytes);
  // The number of bytes to charge, and whether that number could ever fit.
  std::pair<size_t, bool> Need() const;

  // ---- The client.

  // The client is gone: drops what is pending, and accepts no more parts. The call ends with `why`;
  // the first `why` counts. Returns the request that the engine is to cancel.
  std::optional<RequestHandle> Cancel(const absl::Status& why);
  // Returns why the engine cancels the requests: for the reason given to Cancel or, if Cancel was
  // not called, because a sequence has failed (kError). A deadline is told from a cancel as in
  // FinalStatus.
  Ending WhyCancelled(TimePoint arrival, TimePoint deadline) const;
  // Returns CANCELLED after a call of Cancel, otherwise OK.
  absl::Status CheckClient() const;
  // Whether the client would not learn of a state that is stored now, because the call was
  // cancelled or a sequence has failed.
  bool ended_early() const;

  // ---- The engine's side.

  // The engine has accepted the request. `first` is the first of `sequences` consecutive handles.
  // Returns whether the call must cancel them now, because Cancel came before the handles were
  // known.
  bool Accepted(RequestHandle first);
  void ExpectSequences(uint32_t sequences) { sequences_ = sequences; }
  // The engine begins with a sequence. Only the first time counts.
  void Begin();
  // Adds a part of the answer. If too much is unread, returns RESOURCE_EXHAUSTED; if the client's
  // memory has no room, counts the refusal and returns NoMemory. After either, the pending part of
  // the answer is dropped.
  template <typename Part>
  absl::Status Offer(Part part, uint32_t sequence) {
    MutexLock lock(mutex_);
    if (cancelled_ || failed_) return absl::OkStatus();  // the engine has been told, or will be
    const bool behind = IsBehind();
    if (!behind) exchange_.Append(std::move(part), sequence);
    if (!behind && Recharge()) return absl::OkStatus();
    return Overflow(behind);
  }
  // Sets the sealed state with which the client can resume its stream. REQUIRES: the sequence has
  // not ended.
  void SetHandOver(std::string sealed);
  struct SequenceEnd {
    bool last = false;                         // all sequences have ended
    size_t message_bytes = 0;                  // of the last message, if this was the last sequence
    std::optional<RequestHandle> others = {};  // what the engine is to cancel, at the first error
  };
  // A sequence has ended. `stored`: the state that was stored for it.
  SequenceEnd EndSequence(const Outcome& outcome, uint32_t sequence,
                          std::optional<v1::State> stored);
  // The call ends without an engine.
  void EndCall(Outcome outcome);

  // ---- The carrier's side.

  enum class Next { kNothing, kMessage, kEnd };
  // Makes exchange.outgoing() the next message. After kEnd, only the caller uses the exchange.
  Next Take();

  // Once Take has returned kEnd:
  const Outcome& outcome() const { return *outcome_; }
  const v1::State* stored() const { return stored_.has_value() ? &*stored_ : nullptr; }
  uint64_t computed_tokens() const { return computed_tokens_; }
  const std::string& failed_path() const { return failed_path_; }
  bool begun() const { return first_ == First::kSent; }
  // Whether the engine has begun, even if the first message has not left yet.
  bool engine_began() const { return first_ != First::kKept; }
  // Returns the final status of the call: that of the outcome or, if the call was cancelled and no
  // sequence has failed for another reason, the reason of Cancel.
  absl::Status FinalStatus(TimePoint arrival, TimePoint deadline) const;

  // The client is served or gone: releases the charge. `told_all`: the last message told of all
  // sequences. Returns the ids of stored states that the client has not been told.
  std::vector<std::string> Close(bool told_all);

 private:
  bool IsBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Overflow(bool behind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the call was cancelled because its deadline had come.
  bool IsDeadline(TimePoint arrival, TimePoint deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adjusts the charge and the metric to what is held. Returns false if there is no room.
  bool Recharge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeHandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_pending_;  // bytes
  Exchange& exchange_;
  prometheus::Counter& memory_refusals_;
  uint32_t sequences_ = 1;  // set before the engine has the request

  mutable Mutex mutex_;
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
  size_t request_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in charge_, of the request
  size_t sending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in charge_, of the message under way
  GaugePart undelivered_ ABSL_GUARDED_BY(mutex_);     // bytes pending or under way
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cancelled_with_ ABSL_GUARDED_BY(mutex_);
  TimePoint cancelled_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<RequestHandle> handle_ ABSL_GUARDED_BY(mutex_);  // of the first sequence
  bool taken_all_ ABSL_GUARDED_BY(mutex_) = false;  // only the carrier uses the exchange now
  uint32_t ended_ ABSL_GUARDED_BY(mutex_) = 0;      // number of sequences that have ended
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;     // a sequence has failed: parts are ignored
  Outcome total_ ABSL_GUARDED_BY(mutex_);           // sum over the sequences that have ended
  // Ids of stored states whose Finished has not left yet.
  std::vector<std::string> unknown_states_ ABSL_GUARDED_BY(mutex_);
  std::string hand_over_ ABSL_GUARDED_BY(mutex_);  // sealed
  size_t handed_over_ ABSL_GUARDED_BY(mutex_) = 0;

  // Guarded by mutex_ until Take has returned kEnd, then constant.
  enum class First { kKept, kMayLeave, kSent } first_ = First::kKept;
  std::optional<Outcome> outcome_;
  std::optional<v1::State> stored_;  // the state of a single sequence
  uint64_t computed_tokens_ = 0;     // summed over all sequences
  std::string failed_path_;          // path of the first text that failed by a defect
};

}  // namespace aft::server
