#ifndef AFT_SERVER_RPC_RETRY_HINT_H_
#define AFT_SERVER_RPC_RETRY_HINT_H_

#include <atomic>
#include <chrono>

#include "server/engine/request.h"

namespace aft::server {

// How long a refused client should wait: the time in which half of the queue moves into slots, from
// an average of how long requests took. Thread-safe.
class RetryHint {
 public:
  // A request has ended after running (not waiting) for that long.
  void Record(Duration running_time);

  // Between 100 ms and a minute.
  std::chrono::milliseconds After(const EngineLoad& load) const;

 private:
  std::atomic<double> mean_seconds_{1.0};
};

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_RETRY_HINT_H_
