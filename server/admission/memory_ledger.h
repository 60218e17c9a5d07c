#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "server/config/client.h"
#include "server/observability/metrics.h"

namespace aft::server {

// The one budget of memory for what clients cause: requests, answers that are not sent yet. Charged
// before the memory is taken, for the process and for each client; what does not fit is refused.
// Thread-safe.
class MemoryLedger {
 public:
  // In bytes. `per_client`: of clients that have no limit of their own. `metrics` must outlive the
  // ledger, and the ledger its charges.
  MemoryLedger(int64_t total, int64_t per_client, ServerMetrics& metrics);

  int64_t used() const { return used_.load(std::memory_order_relaxed); }

  // Clients that hold a charge.
  size_t clients() const;

 private:
  struct Account {
    explicit Account(int64_t most) : limit(most) {}

    const int64_t limit;
    std::atomic<int64_t> used{0};
    int64_t charges = 0;  // guarded by the ledger's mutex_
  };

 public:
  // What one call holds. Gives all of it back at its end. Thread-compatible.
  class Charge {
   public:
    Charge() = default;
    Charge(MemoryLedger& ledger, const Client& client);
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { Close(); }

    // From now on this holds `bytes`. False, and it holds what it held: there is no room in the
    // budget of process or client. Less always fits, and so does all where there is no ledger.
    bool Resize(int64_t bytes);

    // Whether there would be room for `bytes` if nobody held anything.
    bool MayEverHold(int64_t bytes) const;

    int64_t bytes() const { return bytes_; }

    // Gives it all back, for ever.
    void Close();

   private:
    MemoryLedger* ledger_ = nullptr;
    std::map<std::string, Account>::iterator account_;
    int64_t bytes_ = 0;
  };

 private:
  bool Take(Account& account, int64_t bytes);
  void Give(Account& account, int64_t bytes);

  const int64_t total_;
  const int64_t per_client_;
  ServerMetrics& metrics_;
  std::atomic<int64_t> used_{0};
  mutable Mutex mutex_;
  std::map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // of clients with charges
};

}  // namespace aft::server
