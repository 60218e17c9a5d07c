#pragma once

#include <cstdint>

namespace aft::server {

// Decides whether one more request may enter, so that the waiting queue is bounded. A request that
// finds a free slot does not wait and is always admitted; the others need room in the queue. The
// answer depends only on which requests are in, not on how far the engine thread has got with them.
// Thread-compatible.
class AdmissionBudget {
 public:
  AdmissionBudget(int32_t slots, int32_t max_queued_requests, int64_t max_queued_tokens)
      : slots_(slots),
        max_queued_requests_(max_queued_requests),
        max_queued_tokens_(max_queued_tokens) {}

  enum class Decision { kAdmitted, kTooManyRequests, kTooManyTokens };

  // What an admitted request holds of the budget; the caller keeps it and gives it back.
  struct Charge {
    int64_t queued_tokens = 0;
  };

  // Sets `charge` when the decision is kAdmitted; nothing changes otherwise.
  Decision Admit(int64_t prompt_tokens, Charge& charge) {
    if (in_flight_ >= slots_) {
      if (waiting() >= max_queued_requests_) return Decision::kTooManyRequests;
      if (prompt_tokens > max_queued_tokens_ - queued_tokens_) return Decision::kTooManyTokens;
      charge.queued_tokens = prompt_tokens;
      queued_tokens_ += prompt_tokens;
    } else {
      charge.queued_tokens = 0;
    }
    ++in_flight_;
    return Decision::kAdmitted;
  }

  // The request got a slot.
  void LeaveQueue(Charge& charge) {
    queued_tokens_ -= charge.queued_tokens;
    charge.queued_tokens = 0;
  }

  // The request has ended, in a slot or in the queue.
  void Leave(Charge& charge) {
    LeaveQueue(charge);
    --in_flight_;
  }

  int32_t slots() const { return slots_; }
  int32_t running() const { return in_flight_ < slots_ ? in_flight_ : slots_; }
  int32_t waiting() const { return in_flight_ - running(); }
  int64_t queued_tokens() const { return queued_tokens_; }

 private:
  const int32_t slots_;
  const int32_t max_queued_requests_;
  const int64_t max_queued_tokens_;
  int32_t in_flight_ = 0;
  int64_t queued_tokens_ = 0;
};

}  // namespace aft::server
