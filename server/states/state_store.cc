#include "server/states/state_store.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace aft::server {
namespace {

absl::Status NotFound(bool expired) {
  return absl::NotFoundError(expired ? "this state has expired" : "no state of this id");
}

}  // namespace

std::string StateStore::NewId() {
  std::array<unsigned char, kIdBytes / 2> bytes{};
  // Fails only where the system has no random numbers, or no memory for a generator of a few
  // kilobytes. A guessed id gives access to the state, so no weaker id would do.
  AFT_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

bool StateStore::IsName(absl::string_view name) {
  if (name.size() > kIdBytes) absl::ConsumePrefix(&name, "r");
  return name.size() == kIdBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

StateStore::StateStore(const StatesConfig& config, StateMetrics& metrics,
                       std::function<TimePoint()> clock)
    : budget_(config, metrics), metrics_(metrics), clock_(std::move(clock)) {}

absl::StatusOr<StateStore::Room> StateStore::Reserve(const Client& client, int64_t bytes) {
  Expire();
  return budget_.Reserve(client, bytes);
}

StoredState StateStore::Put(const std::string& owner, const std::string& id,
                            const std::string& model, std::shared_ptr<const SequenceState> state,
                            std::chrono::milliseconds ttl) {
  StoredState stored;
  stored.id = id;
  stored.model = model;
  stored.bytes = StateBytes(*state);
  stored.state = std::move(state);
  std::vector<StoredState> gone;  // destroyed without the lock
  MutexLock lock(mutex_);
  const TimePoint now = clock_();
  ExpireAt(now, gone);
  stored.expires = now + ttl;
  const Key key(owner, id);
  const auto [place, fresh] = states_.try_emplace(key);
  if (!fresh) {
    expiries_.erase({place->second.expires, key});
    gone.push_back(std::move(place->second));
  }
  place->second = stored;
  expiries_.emplace(stored.expires, key);
  metrics_.stored.Increment();
  metrics_.states.Set(static_cast<double>(states_.size()));
  return stored;
}

absl::StatusOr<StoredState> StateStore::Find(const std::string& owner, const std::string& id) {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
  const Key key(owner, id);
  const auto stored = states_.find(key);
  if (stored != states_.end()) return stored->second;
  const bool expired = HasExpired(key);
  metrics_.refused(expired ? StateRefusal::kExpired : StateRefusal::kUnknown).Increment();
  return NotFound(expired);
}

absl::Status StateStore::Delete(const std::string& owner, const std::string& id) {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
  const Key key(owner, id);
  const auto stored = states_.find(key);
  if (stored == states_.end()) return NotFound(HasExpired(key));
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
    if (it->first.second.size() > kIdBytes) break;  // a resume point: they come after all states
    found.push_back(it->second);
  }
  return found;
}

void StateStore::Expire() {
  std::vector<StoredState> gone;
  MutexLock lock(mutex_);
  ExpireAt(clock_(), gone);
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

void StateStore::Remove(States::iterator stored) {
  states_.erase(stored);
  metrics_.states.Set(static_cast<double>(states_.size()));
}

}  // namespace aft::server
