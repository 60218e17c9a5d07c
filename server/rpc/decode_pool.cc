#include "server/rpc/decode_pool.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "server/observability/log.h"

namespace aft::server {
namespace {

constexpr int kThreads = 2;  // one long text does not hold up all others

}  // namespace

struct DecodePool::Task : FairItem {
  Task(const Client& client, size_t message_bytes, std::function<void()> task)
      : FairItem(client.name, client.weight, ServiceClass::kNormal),
        bytes(message_bytes),
        run(std::move(task)) {}

  const size_t bytes;
  std::function<void()> run;
};

DecodePool::DecodePool() {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
}

DecodePool::~DecodePool() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void DecodePool::Add(const Client& client, size_t bytes, std::function<void()> task) {
  auto added = std::make_unique<Task>(client, bytes, std::move(task));
  MutexLock lock(mutex_);
  queue_.Push(*added.release(), std::chrono::steady_clock::now());
  changed_.NotifyOne();
}

void DecodePool::Run() {
  pthread_setname_np(pthread_self(), "aft-decode");
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.waiting() == 0 && !closed_) changed_.Wait(mutex_);
    if (queue_.waiting() == 0) return;
    const TimePoint now = std::chrono::steady_clock::now();
    const std::unique_ptr<Task> task(static_cast<Task*>(queue_.Next(now)));
    queue_.Serve(*task, now);
    queue_.Charge(*task, static_cast<double>(task->bytes));
    mutex_.Unlock();
    try {
      task->run();
    } catch (const std::exception& error) {  // out of memory, where no call can be told of it
      log::Error("decode.task_failed", {{"client", task->client()}, {"error", error.what()}});
    }
    task->run = nullptr;  // what it holds goes without the lock
    mutex_.Lock();
    queue_.Leave(*task);
  }
}

}  // namespace aft::server
