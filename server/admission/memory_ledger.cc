#include "server/admission/memory_ledger.h"

#include <algorithm>
#include <utility>

namespace aft::server {
namespace {

// Adds to `used` unless that exceeds `limit`. What is refused is never added, not even for a
// moment, because other charges would be refused then.
bool AddWithin(int64_t limit, int64_t bytes, std::atomic<int64_t>& used) {
  int64_t before = used.load(std::memory_order_relaxed);
  do {
    if (before > limit - bytes) return false;
  } while (!used.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return true;
}

}  // namespace

MemoryLedger::MemoryLedger(int64_t total, int64_t per_client, ServerMetrics& metrics)
    : total_(total), per_client_(per_client), metrics_(metrics) {
  metrics_.memory_limit.Set(static_cast<double>(total));
}

size_t MemoryLedger::clients() const {
  MutexLock lock(mutex_);
  return accounts_.size();
}

bool MemoryLedger::Take(Account& account, int64_t bytes) {
  if (used_.load(std::memory_order_relaxed) > total_ - bytes) return false;
  if (!AddWithin(account.limit, bytes, account.used)) return false;
  if (!AddWithin(total_, bytes, used_)) {
    account.used.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  metrics_.memory_used.Increment(static_cast<double>(bytes));
  return true;
}

void MemoryLedger::Give(Account& account, int64_t bytes) {
  account.used.fetch_sub(bytes, std::memory_order_relaxed);
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  metrics_.memory_used.Decrement(static_cast<double>(bytes));
}

MemoryLedger::Charge::Charge(MemoryLedger& ledger, const Client& client) : ledger_(&ledger) {
  const int64_t limit = client.max_memory_bytes != 0 ? client.max_memory_bytes : ledger.per_client_;
  MutexLock lock(ledger.mutex_);
  account_ = ledger.accounts_.try_emplace(client.name).first;
  account_->second.limit = limit;
  ++account_->second.charges;
}

MemoryLedger::Charge& MemoryLedger::Charge::operator=(Charge&& other) noexcept {
  Close();
  ledger_ = std::exchange(other.ledger_, nullptr);
  account_ = other.account_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void MemoryLedger::Charge::Close() {
  if (ledger_ == nullptr) return;
  ledger_->Give(account_->second, bytes_);
  {
    MutexLock lock(ledger_->mutex_);
    if (--account_->second.charges == 0) ledger_->accounts_.erase(account_);
  }
  ledger_ = nullptr;
  bytes_ = 0;
}

bool MemoryLedger::Charge::MayEverHold(int64_t bytes) const {
  return ledger_ == nullptr || bytes <= std::min(account_->second.limit.load(), ledger_->total_);
}

bool MemoryLedger::Charge::Resize(int64_t bytes) {
  if (ledger_ == nullptr) return true;
  Account& account = account_->second;
  if (bytes > bytes_) {
    if (!ledger_->Take(account, bytes - bytes_)) return false;
  } else {
    ledger_->Give(account, bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

}  // namespace aft::server
