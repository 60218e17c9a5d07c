#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"

namespace aft::server {

// What states may take of this process's memory in all, and of each client. Thread-safe.
class StateBudget {
  struct Ledger;

 public:
  // A place in the budget, given back on destruction; it may outlive the budget. Thread-compatible.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room() { ShrinkTo(0); }

    int64_t bytes() const { return bytes_; }

    // A room of so many of its bytes, which it has no more. REQUIRES: it has them.
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

  // A place for a state of at most `bytes` that this client is about to have.
  // RESOURCE_EXHAUSTED: the budget, or the client's, is full; says which.
  absl::StatusOr<Room> Reserve(const Client& client, int64_t bytes);

  // The state, whose bytes are taken of the budget for as long as somebody has it. INTERNAL: it is
  // larger than `room`.
  static absl::StatusOr<std::shared_ptr<const SequenceState>> Hold(Room room, SequenceState state);

 private:
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace aft::server
