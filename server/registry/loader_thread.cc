#include "server/registry/loader_thread.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/check.h"
#include "server/engine/request_loop.h"  // Draining
#include "server/observability/log.h"

namespace aft::server {

void LoaderThread::Start(std::function<void()> first) {
  MutexLock lock(join_mutex_);
  AFT_CHECK(!thread_.joinable());
  thread_ = std::thread([this, first = std::move(first)] {
    pthread_setname_np(pthread_self(), "aft-loader");
    first();
    Run();
  });
}

void LoaderThread::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !draining_) changed_.Wait(mutex_);
      if (draining_) return;  // Drain refuses the rest
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const absl::Status status = Catching([&task] {
      task(absl::OkStatus());
      return absl::OkStatus();
    });
    if (!status.ok()) log::Error("loader.task_failed", {{"error", status.message()}});
  }
}

void LoaderThread::Order(Task task, bool limited) {
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (draining_) {
      refused = Draining();
    } else if (limited && tasks_.size() >= kMaxTasks) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(kMaxTasks, " orders to load or unload wait already"));
    } else {
      tasks_.push_back(std::move(task));
      changed_.NotifyAll();
      return;
    }
  }
  task(refused);
}

void LoaderThread::Drain() {
  std::deque<Task> refused;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    refused.swap(tasks_);
    changed_.NotifyAll();
  }
  for (const Task& task : refused) task(Draining());
}

void LoaderThread::Join() {
  Drain();
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace aft::server
