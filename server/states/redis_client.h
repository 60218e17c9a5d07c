#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/fair_queue.h"
#include "server/states/redis_connection.h"

namespace aft::server {

// A thread that makes calls to Redis, over one connection, one after another. Clients of the server
// take turns (FairQueue) by the time for which their calls had the connection. The calls of one
// client keep their order. A client may have at most as many waiting calls as places are left, so
// that it never keeps others out. If it is the only client, these are 1,024.
//
// A call waits at most RedisConfig::timeout for its turn, and as long again for its answer. A call
// with many bytes may take longer (RedisConnection::Call). So that it does not end the calls that
// wait behind it, their time stops while a call takes longer than half of the timeout. (The look-up
// of a host's name may take longer, see RedisConnection; Expire ends calls that wait meanwhile.)
// A call during which Redis closes the connection is repeated once. The time of the first attempt
// counts for the second one, so the other calls lose half of the timeout at most once. If the
// connection closes again, the call ends alone. After a failed attempt to connect, or an answer
// that does not come, all calls fail at once until an attempt succeeds. The thread tries again
// after 50 ms, then after twice as long each time, up to 2 s. A connection that no call has used
// for 5 s is checked with a PING, so that a Redis that has gone is noticed without a call. Later
// calls then find the connection to the new one. The log has a line when Redis goes down, one when
// it is back, and one when a call ends because Redis has closed the connection twice, each at most
// once a second. Thread-safe.
class RedisClient {
 public:
  using Replies = absl::StatusOr<std::vector<RedisReply>>;
  using Done = std::function<void(Replies)>;

  using Open = std::function<absl::StatusOr<std::unique_ptr<RedisConnection>>(
      const RedisConfig&, const std::string& password, RedisConnection::Deadline,
      const RedisConnection::Clock&)>;

  // Does not need Redis to be running yet. The password is read for each attempt to connect,
  // because it may have been changed. `metrics` must outlive the object. `clock`: the time of the
  // calls. The pauses between attempts to connect, and between lines of the log, are real.
  RedisClient(const RedisConfig& config, StateMetrics& metrics, Open open = RedisConnection::Open,
              RedisConnection::Clock clock = std::chrono::steady_clock::now);
  // Ends all calls, then returns.
  ~RedisClient();
  RedisClient(const RedisClient&) = delete;
  RedisClient& operator=(const RedisClient&) = delete;

  // UNAVAILABLE if Redis is known to be down, so that a call would fail at once. The refusal counts
  // as a call that was not sent.
  absl::Status CheckUp() const;

  // `client` is the client whose turn the call uses. `done` is called once: on the thread of this
  // object, on the thread of Expire, or on the calling thread. Commands may be sent again if the
  // connection breaks, so it must be harmless to repeat them. UNAVAILABLE: no answer, or too many
  // calls wait; RESOURCE_EXHAUSTED: no memory for the answer. Clients may see both messages. Redis
  // may have executed the commands despite the error. Replies may be errors of Redis. `begin_by`:
  // the latest time until which the call waits for its turn. All calls for one list of states have
  // the same.
  void Call(const std::string& client, std::vector<RedisCommand> commands, size_t max_bytes,
            Done done, RedisConnection::Deadline begin_by = RedisConnection::Deadline::max());

  // Ends calls whose time is over, and has an idle connection checked. Must be called about every
  // second.
  void Expire();

 private:
  struct Task;
  using Tasks = std::deque<std::unique_ptr<Task>>;

  void Run();
  // Waits for a call, for the time of the next attempt to connect, or until the connection has been
  // idle for too long. Returns false if the object is being destroyed and no call is left.
  bool Wait();
  bool NoCallWaits() const;
  void Connect();
  // Ends the connection if Redis does not answer, or may not be the right server any more.
  // REQUIRES: there is a connection.
  void Check();
  // REQUIRES: there is a connection.
  void DoNext();
  void SetDown(const absl::Status& why);
  void SetUp();
  // The time for which the call under way has stopped the time of the others, or 0.
  std::chrono::steady_clock::duration Excess(std::chrono::steady_clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a call that was not sent.
  void Fail(const Task& task, const absl::Status& why);
  void FailAll(const Tasks& tasks, const absl::Status& why);

  const RedisConfig config_;
  StateMetrics& metrics_;
  const Open open_;
  const RedisConnection::Clock clock_;

  // Only the thread uses these.
  std::unique_ptr<RedisConnection> connection_;
  std::chrono::steady_clock::time_point answered_;  // by clock_: when Redis answered last
  std::chrono::steady_clock::time_point next_attempt_;
  std::chrono::milliseconds pause_{};  // before the next attempt; 0: Redis is not down
  RateLimit downs_{1};
  RateLimit ups_{1};
  RateLimit hang_ups_{1};

  mutable Mutex mutex_;
  CondVar changed_;
  Tasks tasks_ ABSL_GUARDED_BY(mutex_);  // waiting ones, each client's in order
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  // When the time of calls that wait stops; max(): no call is under way.
  std::chrono::steady_clock::time_point due_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::time_point::max();
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
