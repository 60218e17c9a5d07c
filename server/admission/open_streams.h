#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/observability/metrics.h"

namespace aft::server {

// A stream that may be open without a request: its client sends the next one later, or waits for
// changes.
class OpenStream {
 public:
  virtual ~OpenStream() = default;

  // Ends the stream with `status`: at once if it is idle, otherwise when it has answered what it
  // has read. Any thread may call it, without holding a lock of OpenStreams.
  virtual void EndWhenIdle(const absl::Status& status) = 0;
};

// The open streams of one kind. Their number is bounded for all clients together and for each
// client. Where one more stream would exceed a bound, an idle stream gives way: the one that has
// been idle for longest, of the client with the most open streams, or of the asking client if its
// own bound is reached. A client with fewer open streams than the asking one never gives way to it.
// A stream with a request never gives way. Thread-safe.
class OpenStreams {
 public:
  // `kind` names the bounds, which are the fields max_KIND and max_client_KIND of the config's
  // limits. `metrics` must outlive this object.
  OpenStreams(std::string kind, int64_t most, int64_t most_of_client, OpenStreamMetrics& metrics);

  // Adds a stream that begins, idle. RESOURCE_EXHAUSTED names the bound if no stream can give way.
  // UNAVAILABLE after EndAll.
  absl::Status Add(const std::shared_ptr<OpenStream>& stream, const std::string& client);

  // These two do nothing for a stream that was not added or has given way.
  void SetIdle(const OpenStream* stream, bool idle);
  void Remove(const OpenStream* stream);

  // Ends each stream with UNAVAILABLE as soon as it is idle, and accepts no more.
  void EndAll();

 private:
  struct Holder {
    int64_t open = 0;
    std::map<uint64_t, const OpenStream*> idle;  // by the turn in which they became idle
  };
  using Holders = std::map<std::string, Holder>;
  struct Entry {
    std::shared_ptr<OpenStream> stream;
    Holders::iterator holder;
    uint64_t idle_since;  // 0: not idle
  };
  using Entries = std::unordered_map<const OpenStream*, Entry>;

  // Makes room for one more stream of `asking`. `gives_way` is set if a stream has to give way.
  absl::Status MakeRoom(Holders::iterator asking, std::shared_ptr<OpenStream>& gives_way)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds the client whose stream gives way to `asking` when all places are taken; end() if there
  // is none.
  Holders::iterator WhoGivesWay(Holders::iterator asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetIdle(Entry& entry, bool idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string kind_;
  const int64_t most_;
  const int64_t most_of_client_;
  OpenStreamMetrics& metrics_;
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;  // how often a stream has become idle
  Holders holders_ ABSL_GUARDED_BY(mutex_);     // clients with streams
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server
