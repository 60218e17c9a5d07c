#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace aft::server {

// A thread that starts to send what engines have made. Starting to send one message over gRPC takes
// some 8 us, also because the starting thread writes to the socket. An engine's thread that did so
// itself would begin its next step later by that time for each stream. Thread-safe.
class Sender {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Starts to send. If it throws, there is no memory: Fail is called, and then Send again.
    virtual void Send() = 0;
    // Cancels what was to be sent.
    virtual void Fail(const absl::Status& why) = 0;
  };

  Sender();
  ~Sender();  // runs what was posted, then returns

  // Calls `source->Send()` soon, in the order of the calls of Post, and keeps `source` until then.
  void Post(std::shared_ptr<Source> source);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<Source>> posted_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
