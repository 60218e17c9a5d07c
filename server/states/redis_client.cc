#include "server/states/redis_client.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Calls that wait. Each is of a request, which waits for it; those with states hold their part of
// states.max_bytes.
constexpr size_t kMaxTasks = 1024;

constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{2'000};

absl::Status NotReached() {
  return absl::UnavailableError("states: Redis cannot be reached (states.redis)");
}

// What another server behind the same address may do.
bool MeansAnotherServer(const std::vector<RedisReply>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const RedisReply& reply) {
    return reply.type == RedisReply::Type::kError &&
           (absl::StartsWith(reply.text, "READONLY") || absl::StartsWith(reply.text, "LOADING") ||
            absl::StartsWith(reply.text, "NOAUTH") || absl::StartsWith(reply.text, "MASTERDOWN"));
  });
}

}  // namespace

RedisClient::RedisClient(const RedisConfig& config, std::string password, StateMetrics& metrics,
                         Open open)
    : config_(config),
      password_(std::move(password)),
      metrics_(metrics),
      open_(std::move(open)),
      next_attempt_(steady_clock::now()),
      thread_([this] { Run(); }) {}

RedisClient::~RedisClient() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void RedisClient::Call(std::vector<RedisCommand> commands, size_t max_bytes, Done done) {
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (down_) {
      refused = NotReached();
    } else if (tasks_.size() == kMaxTasks) {
      refused = absl::UnavailableError(
          absl::StrCat("states: ", kMaxTasks, " calls wait for Redis (states.redis)"));
    } else {
      tasks_.push_back({.commands = std::move(commands),
                        .max_bytes = max_bytes,
                        .done = std::move(done),
                        .deadline = steady_clock::now() + config_.timeout});
      metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
      changed_.NotifyOne();
      return;
    }
  }
  metrics_.redis_failed(RedisFailure::kUnsent).Increment();
  done(refused);
}

void RedisClient::Expire() {
  std::vector<Task> gone;
  {
    MutexLock lock(mutex_);
    const auto now = steady_clock::now();
    while (!tasks_.empty() && tasks_.front().deadline <= now) {
      gone.push_back(std::move(tasks_.front()));
      tasks_.pop_front();
    }
    metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
  }
  for (const Task& task : gone) {
    metrics_.redis_failed(RedisFailure::kUnsent).Increment();
    task.done(NotReached());
  }
}

void RedisClient::Run() {
  pthread_setname_np(pthread_self(), "aft-redis");
  while (Wait()) {
    if (connection_ == nullptr) Connect();
    if (connection_ != nullptr) DoNext();
  }
}

bool RedisClient::Wait() {
  MutexLock lock(mutex_);
  while (!closed_ && tasks_.empty()) {
    if (connection_ != nullptr) {
      changed_.Wait(mutex_);
    } else if (steady_clock::now() >= next_attempt_) {
      return true;
    } else {
      changed_.WaitUntil(mutex_, next_attempt_);
    }
  }
  return !tasks_.empty();
}

void RedisClient::Connect() {
  auto connection = open_(config_, password_, steady_clock::now() + config_.timeout);
  if (!connection.ok()) return SetDown(connection.status());
  connection_ = *std::move(connection);
  SetUp();
}

void RedisClient::DoNext() {
  Task task;
  {
    MutexLock lock(mutex_);
    if (tasks_.empty()) return;
    task = std::move(tasks_.front());
    tasks_.pop_front();
    metrics_.redis_waiting.Set(static_cast<double>(tasks_.size()));
  }
  const auto now = steady_clock::now();
  if (task.deadline <= now) {
    metrics_.redis_failed(RedisFailure::kUnsent).Increment();
    return task.done(NotReached());
  }
  Replies replies = connection_->Call(task.commands, task.max_bytes, now + config_.timeout);
  if (replies.ok()) {
    if (MeansAnotherServer(*replies)) connection_.reset();
    return task.done(std::move(replies));
  }
  connection_.reset();
  next_attempt_ = steady_clock::now();
  metrics_.redis_failed(RedisFailure::kBroken).Increment();
  if (absl::IsUnavailable(replies.status()) && !task.again) {  // closed, perhaps while it was idle
    task.again = true;
    MutexLock lock(mutex_);
    return tasks_.push_front(std::move(task));
  }
  // Others need not find out one by one that it does not answer.
  SetDown(absl::Status(replies.status().code(), absl::StrCat("states.redis: ", config_.address,
                                                             ": ", replies.status().message())));
  task.done(NotReached());
}

void RedisClient::SetDown(const absl::Status& why) {
  std::deque<Task> failed;
  {
    MutexLock lock(mutex_);
    down_ = true;
    failed.swap(tasks_);
    metrics_.redis_waiting.Set(0);
  }
  if (pause_.count() == 0) {
    if (const auto left_out = downs_.Pass(steady_clock::now())) {
      log::Error("states.redis_down", {{"error", why.ToString()}, {"left_out", *left_out}});
    }
  }
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  next_attempt_ = steady_clock::now() + pause_;
  metrics_.redis_up.Set(0);
  for (const Task& task : failed) {
    metrics_.redis_failed(RedisFailure::kUnsent).Increment();
    task.done(NotReached());
  }
}

void RedisClient::SetUp() {
  if (pause_.count() > 0) {
    if (const auto left_out = ups_.Pass(steady_clock::now())) {
      log::Info("states.redis_up", {{"address", config_.address}, {"left_out", *left_out}});
    }
  }
  pause_ = milliseconds(0);
  metrics_.redis_connects.Increment();
  metrics_.redis_up.Set(1);
  MutexLock lock(mutex_);
  down_ = false;
}

}  // namespace aft::server
