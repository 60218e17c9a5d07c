#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"

namespace aft::server {

// Limits the memory of this process for states, in all and for each client. Thread-safe.
class StateBudget {
  struct Ledger;

 public:
  // A place in the budget, which its destructor gives back. It may outlive the budget.
  // Thread-compatible.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room() { ShrinkTo(0); }

    int64_t bytes() const { return bytes_; }

    // Moves `bytes` of this place into a new one. REQUIRES: it has this number of bytes.
    Room Split(int64_t bytes);

   private:
    friend class StateBudget;

    Room(std::shared_ptr<Ledger> ledger, std::string client, int64_t bytes)
        : ledger_(std::move(ledger)), client_(std::move(client)), bytes_(bytes) {}
    void ShrinkTo(int64_t bytes);

    std::shared_ptr<Ledger> ledger_;
    std::string client_;
    int64_t bytes_ = 0;
  };

  // `metrics` must outlive every state. REQUIRES: config.max_bytes > 0.
  StateBudget(const StatesConfig& config, StateMetrics& metrics);

  // INVALID_ARGUMENT: a state of `bytes` exceeds the whole budget, or the part of one client.
  absl::Status CheckFits(int64_t bytes) const;

  // Reserves a place for a state of the client with at most `bytes`. RESOURCE_EXHAUSTED: the
  // budget, or the client's part of it, is full; the message says which.
  absl::StatusOr<Room> Reserve(const Client& client, int64_t bytes);

  // Returns the state, whose bytes count against the budget until its last copy is released.
  // INTERNAL: it is larger than `room`.
  static absl::StatusOr<std::shared_ptr<const SequenceState>> Hold(Room room, SequenceState state);

 private:
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace aft::server
