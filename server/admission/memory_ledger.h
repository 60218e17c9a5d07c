#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "server/config/client.h"
#include "server/observability/metrics.h"

namespace aft::server {

// The one budget of memory for what clients cause, such as requests and answers that are not sent
// yet. Memory is charged before it is allocated, to the process and to the client. A request that
// does not fit is refused. Thread-safe.
class MemoryLedger {
 public:
  // Both limits are in bytes. `per_client` applies to clients without a limit of their own.
  // `metrics` must outlive the ledger, and the ledger must outlive its charges.
  MemoryLedger(int64_t total, int64_t per_client, ServerMetrics& metrics);

  int64_t used() const { return used_.load(std::memory_order_relaxed); }

  // The number of clients that hold a charge.
  size_t clients() const;

 private:
  struct Account {
    std::atomic<int64_t> limit{0};  // as of the newest charge: the client's limit may change
    std::atomic<int64_t> used{0};
    int64_t charges = 0;  // guarded by the ledger's mutex_
  };

 public:
  // The memory that is charged for one call. Its destructor releases all of it. Thread-compatible.
  class Charge {
   public:
    Charge() = default;
    Charge(MemoryLedger& ledger, const Client& client);
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { Close(); }

    // Changes the charge to `bytes`. Returns false, without a change, if the budget of the process
    // or of the client has no room. A smaller charge always fits, and so does any charge without a
    // ledger.
    bool Resize(int64_t bytes);

    // Whether `bytes` would fit if there were no other charge.
    bool MayEverHold(int64_t bytes) const;

    int64_t bytes() const { return bytes_; }

    // Releases the whole charge for good.
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
  std::map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // clients with charges
};

}  // namespace aft::server
