#include "server/states/state_store.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft::server {
namespace {

// A state and its place in the budget.
struct Kept {
  SequenceState state;
  StateStore::Room room;
};

}  // namespace

std::string StateStore::NewId() {
  std::array<unsigned char, kIdBytes / 2> bytes{};
  AFT_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::Status StateStore::Budget::Take(const std::string& client, int64_t bytes) {
  MutexLock lock(mutex_);
  const auto own = clients_.find(client);
  const int64_t used_by_client = own == clients_.end() ? 0 : own->second;
  const bool client_full = bytes > per_client_ - used_by_client;
  if (client_full || bytes > total_ - used_) {
    metrics_.refused(StateRefusal::kFull).Increment();
    return absl::ResourceExhaustedError(
        absl::StrCat("states: ", bytes, " bytes more than ", client_full ? used_by_client : used_,
                     client_full ? " of this client's exceed states.max_client_bytes="
                                 : " in all exceed states.max_bytes=",
                     client_full ? per_client_ : total_));
  }
  used_ += bytes;
  clients_[client] += bytes;
  metrics_.bytes.Set(static_cast<double>(used_));
  return absl::OkStatus();
}

void StateStore::Budget::Give(const std::string& client, int64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
  const auto own = clients_.find(client);
  own->second -= bytes;
  if (own->second == 0) clients_.erase(own);
  metrics_.bytes.Set(static_cast<double>(used_));
}

StateStore::Room& StateStore::Room::operator=(Room&& other) noexcept {
  Close();
  budget_ = std::move(other.budget_);
  client_ = std::move(other.client_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void StateStore::Room::ShrinkTo(int64_t bytes) {
  if (bytes < bytes_) budget_->Give(client_, bytes_ - bytes);
  bytes_ = std::min(bytes_, bytes);
}

StateStore::StateStore(const StatesConfig& config, StateMetrics& metrics,
                       std::function<TimePoint()> clock)
    : budget_(std::make_shared<Budget>(
          config.max_bytes,
          config.max_client_bytes != 0 ? config.max_client_bytes : config.max_bytes / 2, metrics)),
      metrics_(metrics),
      clock_(std::move(clock)) {
  AFT_CHECK(config.max_bytes > 0);
  metrics_.limit.Set(static_cast<double>(config.max_bytes));
}

absl::StatusOr<StateStore::Room> StateStore::Reserve(const Client& client, int64_t bytes) {
  Expire();
  AFT_RETURN_IF_ERROR(budget_->Take(client.name, bytes));
  return Room(budget_, client.name, bytes);
}

absl::StatusOr<StoredState> StateStore::Put(Room room, const std::string& owner,
                                            const std::string& model, SequenceState state,
                                            std::chrono::milliseconds ttl, std::string id) {
  StoredState stored;
  stored.id = std::move(id);
  stored.model = model;
  stored.bytes = StateBytes(state);
  if (stored.bytes > room.bytes()) {
    return absl::InternalError("a state is larger than what was kept for it");
  }
  room.ShrinkTo(stored.bytes);
  auto kept = std::make_shared<Kept>(Kept{std::move(state), std::move(room)});
  stored.state = std::shared_ptr<const SequenceState>(kept, &kept->state);
  std::vector<StoredState> gone;  // destroyed without the lock
  MutexLock lock(mutex_);
  const TimePoint now = clock_();
  ExpireAt(now, gone);
  stored.expires = now + ttl;
  const Key key(owner, stored.id);
  expiries_.emplace(stored.expires, key);
  states_.emplace(key, stored);
  metrics_.stored.Increment();
  metrics_.states.Set(static_cast<double>(states_.size()));
  return stored;
}

absl::StatusOr<StoredState> StateStore::Find(const std::string& owner, const std::string& id) {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
  AFT_ASSIGN_OR_RETURN(const auto stored, Look({owner, id}));
  return stored->second;
}

absl::Status StateStore::Delete(const std::string& owner, const std::string& id) {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
  AFT_ASSIGN_OR_RETURN(const auto stored, Look({owner, id}));
  gone.push_back(std::move(stored->second));
  expiries_.erase({gone.back().expires, stored->first});
  Remove(stored);
  return absl::OkStatus();
}

std::vector<StoredState> StateStore::List(const std::string& owner, const std::string& after,
                                          size_t most) {
  std::vector<StoredState> gone;
  std::vector<StoredState> found;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
  for (auto it = states_.upper_bound({owner, after});
       it != states_.end() && it->first.first == owner && found.size() < most; ++it) {
    found.push_back(it->second);
  }
  return found;
}

void StateStore::Expire() {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
}

std::chrono::milliseconds StateStore::TimeLeft(const StoredState& stored) const {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(stored.expires - clock_());
  return std::max(left, std::chrono::milliseconds(0));
}

void StateStore::ExpireAt(TimePoint now, std::vector<StoredState>& gone) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const auto stored = states_.find(expiries_.begin()->second);
    expiries_.erase(expiries_.begin());
    expired_.insert(stored->first);
    expired_order_.push_back(stored->first);
    if (expired_order_.size() > kRemembered) {
      expired_.erase(expired_order_.front());
      expired_order_.pop_front();
    }
    gone.push_back(std::move(stored->second));
    Remove(stored);
    metrics_.expired.Increment();
  }
}

absl::StatusOr<StateStore::States::iterator> StateStore::Look(const Key& key) {
  const auto stored = states_.find(key);
  if (stored != states_.end()) return stored;
  const bool expired = expired_.count(key) > 0;
  metrics_.refused(expired ? StateRefusal::kExpired : StateRefusal::kUnknown).Increment();
  return absl::NotFoundError(expired ? "this state has expired" : "no state of this id");
}

void StateStore::Remove(States::iterator stored) {
  states_.erase(stored);
  metrics_.states.Set(static_cast<double>(states_.size()));
}

}  // namespace aft::server
