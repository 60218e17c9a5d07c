#include "server/call/decode_pool.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "server/observability/log.h"

namespace aft::server {
namespace {

constexpr int kThreads = 2;

}  // namespace

struct DecodePool::Task : FairItem {
  Task(const Client& client, size_t message_bytes, std::function<size_t()> task)
      : FairItem(client.name, client.weight, ServiceClass::kNormal),
        bytes(message_bytes),
        run(std::move(task)) {}

  const size_t bytes;
  std::function<size_t()> run;
};

DecodePool::DecodePool() {
  try {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (...) {  // a thread that is not joined would end the process
    End();
    throw;
  }
}

DecodePool::~DecodePool() { End(); }

void DecodePool::End() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void DecodePool::Add(const Client& client, size_t bytes, std::function<void()> task) {
  AddAnswer(client, bytes, [task = std::move(task)] {
    task();
    return size_t{0};
  });
}

void DecodePool::AddAnswer(const Client& client, size_t bytes, std::function<size_t()> task) {
  auto added = std::make_unique<Task>(client, bytes, std::move(task));
  MutexLock lock(mutex_);
  queue_.Push(*added.release(), std::chrono::steady_clock::now());
  changed_.NotifyOne();
}

// The long messages of one client leave at least one thread to the others.
FairItem* DecodePool::Next(TimePoint now) const {
  return queue_.Next(now, [this](const FairItem& item) -> std::optional<ServiceClass> {
    const bool is_long = static_cast<const Task&>(item).bytes >= kLongMessage;
    if (is_long && queue_.serving(item) + 1 >= kThreads) return std::nullopt;
    return item.service_class();
  });
}

void DecodePool::Run() {
  pthread_setname_np(pthread_self(), "aft-decode");
  MutexLock lock(mutex_);
  while (true) {
    const TimePoint now = std::chrono::steady_clock::now();
    const std::unique_ptr<Task> task(static_cast<Task*>(Next(now)));
    if (task == nullptr) {
      if (!closed_ || queue_.waiting() > 0) {
        changed_.Wait(mutex_);
        continue;
      }
      changed_.NotifyAll();  // others may wait until the task of this thread is done
      return;
    }
    queue_.Serve(*task, now);
    queue_.Charge(*task, static_cast<double>(task->bytes));
    mutex_.Unlock();
    size_t answer_bytes = 0;
    try {
      answer_bytes = task->run();
    } catch (const std::exception& error) {  // out of memory, and no call can be told
      log::Error("decode.task_failed", {{"client", task->client()}, {"error", error.what()}});
    }
    task->run = nullptr;  // frees what the task holds without the lock
    mutex_.Lock();
    queue_.Charge(*task, static_cast<double>(answer_bytes));
    queue_.Leave(*task);
  }
}

}  // namespace aft::server
