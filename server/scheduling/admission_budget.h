#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "server/scheduling/service_class.h"

namespace aft::server {

// Decides whether one more request may enter. So the queue of waiting requests is bounded, and so
// is each client's part of it. A request that finds a free slot which its client may use does not
// wait and is always admitted; the others need room in the queue. Whether there is room depends
// only on which requests have entered, not on the progress of the engine thread. Thread-compatible.
class AdmissionBudget {
 public:
  struct Limits {
    int32_t slots = 0;
    int32_t max_queued_requests = 0;
    int64_t max_queued_tokens = 0;  // a client may have half of it, or one request
  };

  enum class Decision { kAdmitted, kTooManyRequests, kTooManyOfClient, kTooManyTokens };

  // The part of the budget that an admitted request holds. Its owner gives it back. Movable.
  class Charge {
   public:
    // The number of waiting requests of the same client that go before this one; 0 when it found a
    // free slot.
    int32_t ahead() const { return ahead_; }

   private:
    friend class AdmissionBudget;

    struct Client {
      int32_t requests = 0;
      int32_t slots = 0;  // the most that it may use, as of its last request
      int32_t queued_requests = 0;
      int64_t queued_tokens = 0;
      std::array<int32_t, kServiceClasses> queued_texts{};  // by class
    };
    std::map<std::string, Client>::iterator client_{};
    int32_t ahead_ = 0;
    bool queued_ = false;
    std::optional<ServiceClass> class_;  // set when its text is added
    int64_t queued_tokens_ = 0;
  };

  explicit AdmissionBudget(const Limits& limits) : limits_(limits) {}

  // Reserves a place for a request that is not parsed yet. `client_quota` is the number of requests
  // of its client that may wait, `client_slots` the number that may run. If the decision is
  // kAdmitted, sets `charge`; otherwise nothing changes.
  Decision Enter(const std::string& client, int32_t client_quota, int32_t client_slots,
                 Charge& charge) {
    const auto found = clients_.find(client);
    const bool known = found != clients_.end();
    const Charge::Client before = known ? found->second : Charge::Client();
    const bool queued = before.requests >= client_slots || may_run_ >= limits_.slots;
    if (queued && waiting() >= limits_.max_queued_requests) return Decision::kTooManyRequests;
    if (queued && before.queued_requests >= client_quota) return Decision::kTooManyOfClient;
    charge.client_ = known ? found : clients_.try_emplace(client).first;
    charge.queued_ = queued;
    Charge::Client& entry = charge.client_->second;
    may_run_ += std::min(entry.requests + 1, client_slots) - std::min(entry.requests, entry.slots);
    entry.slots = client_slots;
    if (queued) ++entry.queued_requests;
    ++entry.requests;
    ++in_flight_;
    return Decision::kAdmitted;
  }

  // Adds the text of a request that has entered. `tokens` is 0 if another request reads the text.
  // Unless the decision is kAdmitted, the caller must call Leave.
  Decision AddText(int64_t tokens, ServiceClass service_class, Charge& charge) {
    if (!charge.queued_) return Decision::kAdmitted;
    Charge::Client& client = charge.client_->second;
    if (tokens > limits_.max_queued_tokens - queued_tokens_) return Decision::kTooManyTokens;
    if (tokens > 0 && client.queued_tokens > 0 &&
        tokens > limits_.max_queued_tokens / 2 - client.queued_tokens) {
      return Decision::kTooManyOfClient;
    }
    for (int i = 0; i <= static_cast<int>(service_class); ++i) {
      charge.ahead_ += client.queued_texts[static_cast<size_t>(i)];
    }
    charge.class_ = service_class;
    ++client.queued_texts[static_cast<size_t>(service_class)];
    charge.queued_tokens_ = tokens;
    client.queued_tokens += tokens;
    queued_tokens_ += tokens;
    return Decision::kAdmitted;
  }

  // The request got a slot.
  void LeaveQueue(Charge& charge) {
    if (!charge.queued_) return;
    Charge::Client& client = charge.client_->second;
    --client.queued_requests;
    if (charge.class_) --client.queued_texts[static_cast<size_t>(*charge.class_)];
    client.queued_tokens -= charge.queued_tokens_;
    queued_tokens_ -= charge.queued_tokens_;
    charge.queued_tokens_ = 0;
    charge.queued_ = false;
  }

  // The request has ended, in a slot or in the queue.
  void Leave(Charge& charge) {
    LeaveQueue(charge);
    --in_flight_;
    Charge::Client& client = charge.client_->second;
    if (--client.requests < client.slots) --may_run_;
    if (client.requests == 0) clients_.erase(charge.client_);
  }

  int32_t slots() const { return limits_.slots; }
  int32_t in_flight() const { return in_flight_; }
  int32_t running() const { return std::min(may_run_, limits_.slots); }
  int32_t waiting() const { return in_flight_ - running(); }
  int64_t queued_tokens() const { return queued_tokens_; }
  size_t clients() const { return clients_.size(); }

 private:
  const Limits limits_;
  std::map<std::string, Charge::Client> clients_;  // clients that have requests
  int32_t in_flight_ = 0;
  // The sum over all clients of their requests in flight, each counted up to the client's slots.
  int32_t may_run_ = 0;
  int64_t queued_tokens_ = 0;
};

}  // namespace aft::server
