#include "server/states/redis_client.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The number of calls that may wait, of all clients. Each belongs to a request that waits for it.
// Calls with states hold their part of states.max_bytes.
constexpr size_t kPlaces = 2048;

// A connection that no call has used for this time is checked.
constexpr std::chrono::seconds kIdleTime{5};
// The most bytes of the answer to a check, which is +PONG or an error.
constexpr size_t kCheckBytes = 4096;

constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{2'000};

absl::Status NotReached() {
  return absl::UnavailableError("states: Redis cannot be reached (states.redis)");
}

absl::Status HungUp() {
  return absl::UnavailableError(
      "states: Redis closed the connection during the call, and again when it was repeated "
      "(states.redis)");
}

// Errors that another server behind the same address might not give.
bool MeansAnotherServer(const std::vector<RedisReply>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const RedisReply& reply) {
    return reply.type == RedisReply::Type::kError &&
           (absl::StartsWith(reply.text, "READONLY") || absl::StartsWith(reply.text, "LOADING") ||
            absl::StartsWith(reply.text, "NOAUTH") || absl::StartsWith(reply.text, "MASTERDOWN"));
  });
}

}  // namespace

// The weights of clients are for models: here all clients are equal.
struct RedisClient::Task : FairItem {
  explicit Task(const std::string& of) : FairItem(of, 1, ServiceClass::kInteractive) {}

  std::vector<RedisCommand> commands;
  size_t max_bytes = 0;
  Done done;
  RedisConnection::Deadline deadline;  // for its turn; later if other calls take longer
  bool again = false;                  // the connection broke during the call
  steady_clock::time_point due;        // when the first attempt reached half of the timeout
};

RedisClient::RedisClient(const RedisConfig& config, StateMetrics& metrics, Open open,
                         RedisConnection::Clock clock)
    : config_(config),
      metrics_(metrics),
      open_(std::move(open)),
      clock_(std::move(clock)),
      next_attempt_(steady_clock::now()),
      // A call that has waited for half of its time goes first, however many clients there are.
      queue_(Duration(config.timeout) / (2 * FairQueue::kOverdueAges)),
      thread_([this] { Run(); }) {}

RedisClient::~RedisClient() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status RedisClient::CheckUp() const {
  {
    MutexLock lock(mutex_);
    if (!down_) return absl::OkStatus();
  }
  metrics_.redis_failed(RedisFailure::kUnsent).Increment();
  return NotReached();
}

void RedisClient::Call(const std::string& client, std::vector<RedisCommand> commands,
                       size_t max_bytes, Done done, RedisConnection::Deadline begin_by) {
  auto task = std::make_unique<Task>(client);
  task->commands = std::move(commands);
  task->max_bytes = max_bytes;
  task->done = std::move(done);
  absl::Status refused = NotReached();
  {
    MutexLock lock(mutex_);
    if (!down_) {
      const auto now = clock_();
      task->deadline = std::min(now + config_.timeout, begin_by);
      queue_.Push(*task, now);
      if (tasks_.size() + queue_.account(*task)->waiting <= kPlaces) {
        tasks_.push_back(std::move(task));
        metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
        changed_.NotifyOne();
        return;
      }
      queue_.Leave(*task);
      refused = absl::UnavailableError(
          "states: too many calls of this client, or of all, wait for Redis (states.redis)");
    }
  }
  Fail(*task, refused);
}

void RedisClient::Expire() {
  const absl::Status not_reached = NotReached();  // made before a call leaves: it needs memory
  Tasks gone;
  {
    MutexLock lock(mutex_);
    const auto now = clock_();
    const auto over = std::stable_partition(
        tasks_.begin(), tasks_.end(),
        [latest = now - Excess(now)](const auto& task) { return task->deadline > latest; });
    gone.assign(std::make_move_iterator(over), std::make_move_iterator(tasks_.end()));
    tasks_.erase(over, tasks_.end());
    for (const auto& task : gone) queue_.Leave(*task);
    metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
    changed_.NotifyOne();  // Wait looks how long the connection has been idle
  }
  FailAll(gone, not_reached);
}

steady_clock::duration RedisClient::Excess(steady_clock::time_point now) const {
  return now - std::min(now, due_);
}

void RedisClient::Fail(const Task& task, const absl::Status& why) {
  metrics_.redis_failed(RedisFailure::kUnsent).Increment();
  task.done(why);
}

// Each call is told, even where the callback of another one throws.
void RedisClient::FailAll(const Tasks& tasks, const absl::Status& why) {
  for (const auto& task : tasks) {
    Catching([&] {
      Fail(*task, why);
      return absl::OkStatus();
    }).IgnoreError();
  }
}

void RedisClient::Run() {
  pthread_setname_np(pthread_self(), "aft-redis");
  while (Wait()) {
    const absl::Status status = Catching([this] {
      if (connection_ == nullptr) {
        Connect();
      } else if (NoCallWaits()) {
        Check();
      }
      if (connection_ != nullptr) DoNext();
      return absl::OkStatus();
    });
    // There is not even enough memory to tell the call.
    if (!status.ok()) log::Error("states.task_failed", {{"error", status.message()}});
  }
}

bool RedisClient::Wait() {
  MutexLock lock(mutex_);
  while (!closed_ && tasks_.empty()) {
    if (connection_ != nullptr) {
      if (clock_() - answered_ >= kIdleTime) return true;
      changed_.Wait(mutex_);
    } else if (steady_clock::now() >= next_attempt_) {
      return true;
    } else {
      changed_.WaitUntil(mutex_, next_attempt_);
    }
  }
  return !tasks_.empty();
}

bool RedisClient::NoCallWaits() const {
  MutexLock lock(mutex_);
  return tasks_.empty();
}

void RedisClient::Connect() {
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection;
  const absl::Status status = Catching([&]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(const std::string password, ReadRedisPassword(config_));
    connection = open_(config_, password, clock_() + config_.timeout, clock_);
    return connection.status();
  });
  if (!status.ok()) return SetDown(status);
  connection_ = *std::move(connection);
  SetUp();
}

// If the connection is of no use, it ends without any call failing: only an attempt to connect
// shows whether Redis is down. A call that comes meanwhile loses at most half of its time.
void RedisClient::Check() {
  Replies replies;
  const absl::Status status = Catching([&] {
    replies = connection_->Call({{"PING"}}, kCheckBytes, clock_() + Duration(config_.timeout) / 2);
    return replies.status();
  });
  if (status.ok() && !MeansAnotherServer(*replies)) {
    answered_ = clock_();
  } else {
    connection_.reset();
  }
}

void RedisClient::DoNext() {
  const auto began = clock_();
  std::unique_ptr<Task> task;
  bool over = false;
  {
    MutexLock lock(mutex_);
    FairItem* const next = queue_.Next(began);
    if (next == nullptr) return;
    const auto place = std::find_if(tasks_.begin(), tasks_.end(),
                                    [next](const auto& waits) { return waits.get() == next; });
    task = std::move(*place);
    tasks_.erase(place);
    metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
    queue_.Serve(*task, began);
    over = task->deadline <= began;
    if (over) {
      queue_.Leave(*task);
    } else {
      // A call that has waited longer than half of the timeout went first.
      if (!task->again) task->due = began + config_.timeout / 2;
      due_ = std::max(began, task->due);
    }
  }
  if (over) return Fail(*task, NotReached());
  Replies replies;
  const absl::Status status = Catching([&] {
    replies = connection_->Call(task->commands, task->max_bytes, began + config_.timeout);
    return replies.status();
  });
  const bool again = absl::IsUnavailable(status) && !task->again;  // closed, perhaps while idle
  {
    MutexLock lock(mutex_);
    const auto now = clock_();
    const auto excess = Excess(now);
    due_ = steady_clock::time_point::max();
    for (const auto& waiting : tasks_) {
      waiting->deadline += std::min<steady_clock::duration>(excess, now - waiting->since());
    }
    if (again) {
      task->again = true;
      task->deadline += now - began;  // it did not wait for its turn meanwhile
      queue_.PushFront(*task, began);
      tasks_.push_front(std::move(task));
      metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
    } else {
      queue_.Charge(*task, Seconds(clock_() - began));
      queue_.Leave(*task);
    }
  }
  if (status.ok()) {
    answered_ = clock_();
    if (MeansAnotherServer(*replies)) connection_.reset();
    // NOLINTNEXTLINE(bugprone-use-after-move): only `again`, which is an error, moves it
    return task->done(std::move(replies));
  }
  connection_.reset();
  next_attempt_ = steady_clock::now();
  metrics_.redis_failed(RedisFailure::kBroken).Increment();
  if (again) return;
  if (absl::IsResourceExhausted(status)) return task->done(status);  // it concerns this call alone
  // The call was repeated on a connection on which Redis had answered, so the call may be the
  // cause. If Redis is down, the next attempt to connect fails.
  if (absl::IsUnavailable(status)) {
    if (const auto left_out = hang_ups_.Pass(steady_clock::now())) {
      log::Error("states.redis_hung_up", {{"error", status.message()}, {"left_out", *left_out}});
    }
    return task->done(HungUp());
  }
  // All waiting calls fail now. They need not find out one by one that Redis does not answer.
  const absl::Status not_reached = NotReached();
  Catching([&] {
    SetDown(absl::Status(status.code(),
                         absl::StrCat("states.redis: ", config_.address, ": ", status.message())));
    return absl::OkStatus();
  }).IgnoreError();
  task->done(not_reached);
}

void RedisClient::SetDown(const absl::Status& why) {
  const bool was_up = pause_.count() == 0;
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  next_attempt_ = steady_clock::now() + pause_;
  // The calls leave the queue after everything that needs memory, so that an exception loses none.
  if (was_up) {
    if (const auto left_out = downs_.Pass(steady_clock::now())) {
      log::Error("states.redis_down", {{"error", why.ToString()}, {"left_out", *left_out}});
    }
  }
  const absl::Status not_reached = NotReached();
  Tasks failed;
  {
    MutexLock lock(mutex_);
    down_ = true;
    failed.swap(tasks_);
    for (const auto& task : failed) queue_.Leave(*task);
    metrics_.redis_waiting.Set(0);
  }
  metrics_.redis_up.Set(0);
  FailAll(failed, not_reached);
}

void RedisClient::SetUp() {
  if (pause_.count() > 0) {
    if (const auto left_out = ups_.Pass(steady_clock::now())) {
      log::Info("states.redis_up", {{"address", config_.address}, {"left_out", *left_out}});
    }
  }
  pause_ = milliseconds(0);
  answered_ = clock_();
  metrics_.redis_connects.Increment();
  metrics_.redis_up.Set(1);
  MutexLock lock(mutex_);
  down_ = false;
}

}  // namespace aft::server
