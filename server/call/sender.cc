#include "server/call/sender.h"

#include <pthread.h>

#include <utility>

#include "absl/status/status.h"
#include "base/catching.h"
#include "server/observability/log.h"

namespace aft::server {

Sender::Sender() : thread_([this] { Run(); }) {}

Sender::~Sender() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

void Sender::Post(std::shared_ptr<Source> source) {
  MutexLock lock(mutex_);
  posted_.push_back(std::move(source));
  if (posted_.size() == 1) changed_.NotifyOne();
}

void Sender::Run() {
  pthread_setname_np(pthread_self(), "aft-send");
  // It is swapped with posted_, so that both keep their memory.
  std::vector<std::shared_ptr<Source>> sources;
  MutexLock lock(mutex_);
  while (true) {
    while (posted_.empty()) {
      if (closed_) return;
      changed_.Wait(mutex_);
    }
    sources.swap(posted_);
    mutex_.Unlock();
    for (std::shared_ptr<Source>& source : sources) {
      const auto send = [&] {
        source->Send();
        return absl::OkStatus();
      };
      for (absl::Status sent = Catching(send); !sent.ok(); sent = Catching(send)) {
        log::Error("send.failed", {{"error", sent.message()}});
        source->Fail(sent);
      }
      source.reset();  // may free a call
    }
    sources.clear();
    mutex_.Lock();
  }
}

}  // namespace aft::server
