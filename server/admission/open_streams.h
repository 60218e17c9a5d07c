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

// A stream that may stay open without a request: its client sends the next one when it likes, or
// waits for news.
class OpenStream {
 public:
  virtual ~OpenStream() = default;

  // Ends the stream with `status`: at once when it is idle, else when it has answered what it has
  // read. Any thread may call it, without a lock of OpenStreams.
  virtual void EndWhenIdle(const absl::Status& status) = 0;
};

// The open streams of one kind, bounded for all clients together and for each. Where one more would
// exceed a bound, an idle stream gives way: of the client that has most open (of the client itself,
// where its own bound is reached) the one that has been idle for longest. A client with fewer
// streams open than the one that asks never gives way to it, nor does a stream in the middle of a
// request. Thread-safe.
class OpenStreams {
 public:
  // `kind`: the bounds are the fields max_KIND and max_client_KIND of the config's limits.
  // `metrics` must outlive this.
  OpenStreams(std::string kind, int64_t most, int64_t most_of_client, OpenStreamMetrics& metrics);

  // Takes a stream that begins, idle. RESOURCE_EXHAUSTED, naming the bound: none may give way to
  // it. UNAVAILABLE: EndAll was called.
  absl::Status Add(const std::shared_ptr<OpenStream>& stream, const std::string& client);

  // These change nothing for streams that were not taken, or have given way.
  void SetIdle(const OpenStream* stream, bool idle);
  void Remove(const OpenStream* stream);

  // Ends all when they are idle, with UNAVAILABLE, and takes no more.
  void EndAll();

 private:
  struct Holder {
    int64_t open = 0;
    std::map<uint64_t, const OpenStream*> idle;  // by since when, in turns_
  };
  using Holders = std::map<std::string, Holder>;
  struct Entry {
    std::shared_ptr<OpenStream> stream;
    Holders::iterator holder;
    uint64_t idle_since;  // 0: it is not
  };
  using Entries = std::unordered_map<const OpenStream*, Entry>;

  // Makes room for one more of `asking`, and sets the stream that gives way for it, if one must.
  absl::Status MakeRoom(Holders::iterator asking, std::shared_ptr<OpenStream>& gives_way)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whose stream gives way to one more of `asking`, as all places are taken. end(): no client's.
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
