#include "server/states/state_budget.h"

#include <algorithm>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace aft::server {

struct StateBudget::Ledger {
  Ledger(int64_t total_bytes, int64_t client_bytes, StateMetrics& state_metrics)
      : total(total_bytes), per_client(client_bytes), metrics(state_metrics) {}

  absl::Status Take(const std::string& client, int64_t bytes);
  void Give(const std::string& client, int64_t bytes);

  const int64_t total;
  const int64_t per_client;
  StateMetrics& metrics;
  Mutex mutex;
  int64_t used ABSL_GUARDED_BY(mutex) = 0;
  std::map<std::string, int64_t> clients ABSL_GUARDED_BY(mutex);  // those that use some of it
};

absl::Status StateBudget::Ledger::Take(const std::string& client, int64_t bytes) {
  MutexLock lock(mutex);
  const auto own = clients.find(client);
  const int64_t used_by_client = own == clients.end() ? 0 : own->second;
  const bool client_full = bytes > per_client - used_by_client;
  if (client_full || bytes > total - used) {
    metrics.refused(StateRefusal::kFull).Increment();
    return absl::ResourceExhaustedError(
        client_full ? absl::StrCat("states: ", bytes, " bytes more than ", used_by_client,
                                   " of this client's exceed states.max_client_bytes=", per_client)
                    // A client must not learn what others have stored.
                    : absl::StrCat("states: ", bytes, " bytes more than those of all clients ",
                                   "exceed states.max_bytes=", total));
  }
  used += bytes;
  clients[client] += bytes;
  metrics.bytes.Set(static_cast<double>(used));
  return absl::OkStatus();
}

void StateBudget::Ledger::Give(const std::string& client, int64_t bytes) {
  MutexLock lock(mutex);
  used -= bytes;
  const auto own = clients.find(client);
  own->second -= bytes;
  if (own->second == 0) clients.erase(own);
  metrics.bytes.Set(static_cast<double>(used));
}

StateBudget::Room& StateBudget::Room::operator=(Room&& other) noexcept {
  ShrinkTo(0);
  ledger_ = std::move(other.ledger_);
  client_ = std::move(other.client_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

StateBudget::Room StateBudget::Room::Split(int64_t bytes) {
  AFT_CHECK(bytes <= bytes_);
  bytes_ -= bytes;
  return Room(ledger_, client_, bytes);
}

void StateBudget::Room::ShrinkTo(int64_t bytes) {
  if (bytes < bytes_) ledger_->Give(client_, bytes_ - bytes);
  bytes_ = std::min(bytes_, bytes);
}

StateBudget::StateBudget(const StatesConfig& config, StateMetrics& metrics)
    : ledger_(std::make_shared<Ledger>(
          config.max_bytes,
          config.max_client_bytes != 0 ? config.max_client_bytes : config.max_bytes / 2, metrics)) {
  AFT_CHECK(config.max_bytes > 0);
  metrics.limit.Set(static_cast<double>(config.max_bytes));
}

absl::Status StateBudget::CheckFits(int64_t bytes) const {
  const bool client_fits = bytes <= ledger_->per_client;
  if (client_fits && bytes <= ledger_->total) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the state may need ", bytes, " bytes, which exceed ",
                   client_fits ? "states.max_bytes=" : "states.max_client_bytes=",
                   client_fits ? ledger_->total : ledger_->per_client));
}

absl::StatusOr<StateBudget::Room> StateBudget::Reserve(const Client& client, int64_t bytes) {
  // A negative number would give the client more than its part for as long as the process lives.
  if (bytes < 0) return absl::InternalError("a state of negative size");
  AFT_RETURN_IF_ERROR(ledger_->Take(client.name, bytes));
  return Room(ledger_, client.name, bytes);
}

absl::StatusOr<std::shared_ptr<const SequenceState>> StateBudget::Hold(Room room,
                                                                       SequenceState state) {
  struct Held {
    SequenceState state;
    Room room;
  };
  const int64_t bytes = StateBytes(state);
  if (bytes > room.bytes()) {
    return absl::InternalError("a state is larger than what was kept for it");
  }
  room.ShrinkTo(bytes);
  const auto held = std::make_shared<Held>(Held{std::move(state), std::move(room)});
  return std::shared_ptr<const SequenceState>(held, &held->state);
}

}  // namespace aft::server
