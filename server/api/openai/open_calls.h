#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/call/call.h"
#include "server/scheduling/time.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

// The calls over HTTP that have not ended. Thread-safe.
class OpenCalls {
 public:
  struct Entry {
    std::shared_ptr<Call> call;
    CallerFacts facts;
    std::string client;  // the client's name
  };

  // Returns false after WaitForNone has been called. Also checks the client again, because the list
  // of clients may have changed while the body of the request arrived.
  bool Add(const void* owner, const Entry& entry, const ClientIdentity& identity) {
    {
      MutexLock lock(mutex_);
      if (closed_) return false;
      calls_.emplace(owner, entry);
    }
    CheckClient(entry, identity);
    return true;
  }
  void Remove(const void* owner) {
    MutexLock lock(mutex_);
    calls_.erase(owner);
    changed_.NotifyAll();
  }

  // The list of clients may have changed: ends each call whose client may no longer make it.
  void CheckClients(const ClientIdentity& identity) const {
    for (const Entry& entry : List()) CheckClient(entry, identity);
  }

  // Accepts no more calls and waits until all have ended. Cancels those still open at the deadline.
  void WaitForNone(TimePoint deadline) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      while (!calls_.empty() && changed_.WaitUntil(mutex_, deadline)) continue;
    }
    for (const Entry& entry : List()) {
      entry.call->Cancel(absl::UnavailableError("the server is shutting down"));
    }
    MutexLock lock(mutex_);
    while (!calls_.empty()) changed_.Wait(mutex_);
  }

 private:
  // May be called before the call has started.
  static void CheckClient(const Entry& entry, const ClientIdentity& identity) {
    auto client = identity.Find(entry.facts);
    if (!client.ok()) {
      entry.call->Cancel(client.status());
    } else if ((*client)->name != entry.client) {
      entry.call->Cancel(absl::UnauthenticatedError("authorization: it is another client's now"));
    } else {
      entry.call->OnClient(*std::move(client));
    }
  }

  std::vector<Entry> List() const {
    std::vector<Entry> entries;
    MutexLock lock(mutex_);
    for (const auto& [owner, entry] : calls_) entries.push_back(entry);
    return entries;
  }

  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const void*, Entry> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server::openai
