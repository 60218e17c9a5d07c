#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/call/call.h"
#include "server/config/client.h"
#include "server/scheduling/time.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

// The calls over HTTP that have not ended, and the requests for stored responses. Thread-safe.
class OpenCalls {
 public:
  struct Entry {
    std::shared_ptr<Call> call;
    CallerFacts facts;
    std::string client;  // the client's name
  };

  struct Leave {
    void operator()(OpenCalls* calls) const {
      MutexLock lock(calls->mutex_);
      --calls->others_;
      calls->changed_.NotifyAll();
    }
  };
  // A request that is no call counts until its place is destroyed.
  using Place = std::unique_ptr<OpenCalls, Leave>;
  // Returns null after WaitForNone has been called.
  Place Enter() {
    MutexLock lock(mutex_);
    if (closed_) return nullptr;
    ++others_;
    return Place(this);
  }

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
  // Finds the client of a request again, because the list of clients may have changed.
  // UNAUTHENTICATED if the client of that name may no longer make the request.
  static absl::StatusOr<std::shared_ptr<const Client>> FindAgain(const ClientIdentity& identity,
                                                                 const CallerFacts& facts,
                                                                 const std::string& name) {
    auto client = identity.Find(facts);
    if (client.ok() && (*client)->name != name) {
      return absl::UnauthenticatedError("authorization: it is another client's now");
    }
    return client;
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

  // Accepts no more requests and waits until all have ended. At the deadline it cancels the calls
  // that are still open. Then it calls `close`, which must close the connections, because a
  // cancelled call also waits for its client to read what is being sent.
  void WaitForNone(TimePoint deadline, absl::FunctionRef<void()> close) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      while (!none() && changed_.WaitUntil(mutex_, deadline)) continue;
      if (none()) return;
    }
    for (const Entry& entry : List()) {
      entry.call->Cancel(absl::UnavailableError("the server is shutting down"));
    }
    close();
    MutexLock lock(mutex_);
    while (!none()) changed_.Wait(mutex_);
  }

 private:
  bool none() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.empty() && others_ == 0; }

  // May be called before the call has started. The lock keeps a thread that found an older record
  // of the client from passing it on after the newer one.
  void CheckClient(const Entry& entry, const ClientIdentity& identity) const {
    MutexLock lock(check_mutex_);
    auto client = FindAgain(identity, entry.facts, entry.client);
    if (!client.ok()) {
      entry.call->Cancel(client.status());
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

  mutable Mutex check_mutex_;  // not held together with mutex_
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const void*, Entry> calls_ ABSL_GUARDED_BY(mutex_);
  size_t others_ ABSL_GUARDED_BY(mutex_) = 0;  // places that are in use
};

}  // namespace aft::server::openai
