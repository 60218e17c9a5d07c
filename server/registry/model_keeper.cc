#include "server/registry/model_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/observability/log.h"

namespace aft::server {
namespace {

// How often the keeper tries again to end an engine whose thread is stuck.
constexpr std::chrono::seconds kStuckInterval{10};
constexpr std::chrono::seconds kHandOver{1};

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

ModelKeeper::~ModelKeeper() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

ModelHold ModelKeeper::Keep(std::unique_ptr<ServedModel> model) {
  const ServedModel* const served = model.get();
  Models::iterator kept;
  {
    MutexLock lock(mutex_);
    kept = models_.emplace(models_.end());
    kept->model = std::move(model);
  }
  // The hold is made without the lock, because its deleter is called at once if there is no memory
  // for it.
  ModelHold hold(served, [this, kept](const ServedModel* /*model*/) {
    MutexLock lock(mutex_);
    kept->released = true;
    changed_.NotifyAll();
  });
  MutexLock lock(mutex_);
  kept->hold = hold;
  return hold;
}

void ModelKeeper::Retire(ModelHold hold, TimePoint drain_at, TimePoint end_at,
                         std::shared_ptr<void> until_gone) {
  {
    MutexLock lock(mutex_);
    const auto kept = std::find_if(models_.begin(), models_.end(),
                                   [&](const Kept& one) { return one.model.get() == hold.get(); });
    kept->drain_at = drain_at;
    kept->end_at = end_at;
    if (!shut_down_) kept->until_gone = std::move(until_gone);
    changed_.NotifyAll();
  }
  hold.reset();  // not under the lock: it may be the last one
}

std::vector<ModelHold> ModelKeeper::Held() const {
  MutexLock lock(mutex_);
  std::vector<ModelHold> held;
  for (const Kept& kept : models_) {
    if (ModelHold hold = kept.hold.lock()) held.push_back(std::move(hold));
  }
  return held;
}

std::vector<MemoryPart> ModelKeeper::Memory() const {
  MutexLock lock(mutex_);
  std::vector<MemoryPart> parts;
  for (const Kept& kept : models_) {
    for (MemoryPart& part : MemoryOfModel(kept.model->config, kept.model->info)) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

bool ModelKeeper::Shutdown(TimePoint deadline) {
  bool ended = true;
  for (const ModelHold& model : Held()) ended &= model->engine().TryShutdown(deadline);
  std::vector<std::shared_ptr<void>> told;
  MutexLock lock(mutex_);
  shut_down_ = true;
  while (busy_) changed_.Wait(mutex_);
  // A thread that was stuck may have ended since.
  for (Kept& kept : models_) {
    if (kept.released) kept.try_at = TimePoint::min();
  }
  changed_.NotifyAll();
  while (IsEnding()) changed_.Wait(mutex_);
  for (Kept& kept : models_) {
    ended &= kept.try_at == TimePoint::min();
    told.push_back(std::move(kept.until_gone));
  }
  return ended;
}

bool ModelKeeper::IsEnding() const {
  return busy_ || std::any_of(models_.begin(), models_.end(), [](const Kept& kept) {
           return kept.released && kept.try_at == TimePoint::min();
         });
}

void ModelKeeper::Run() {
  pthread_setname_np(pthread_self(), "aft-keeper");
  MutexLock lock(mutex_);
  while (!stopped_ || !models_.empty()) {
    Work work = TakeWork(Now());
    if (work.empty()) {
      if (work.next == TimePoint::max()) {
        changed_.Wait(mutex_);
      } else {
        changed_.WaitUntil(mutex_, work.next);
      }
      continue;
    }
    const bool wait = stopped_;
    busy_ = true;
    mutex_.Unlock();
    Do(work, wait);
    mutex_.Lock();
    Models ended;
    for (const Models::iterator kept : work.released) ended.splice(ended.end(), models_, kept);
    mutex_.Unlock();
    Destroy(std::move(ended));
    mutex_.Lock();
    busy_ = false;
    changed_.NotifyAll();
  }
}

ModelKeeper::Work ModelKeeper::TakeWork(TimePoint now) {
  Work work;
  const auto due = [&](TimePoint& time) {
    if (time > now) {
      work.next = std::min(work.next, time);
      return false;
    }
    time = TimePoint::max();
    return true;
  };
  for (auto it = models_.begin(); it != models_.end();) {
    const auto kept = it++;
    if (kept->released) {
      if (kept->try_at <= now || stopped_) {
        work.released.push_back(kept);
      } else {
        work.next = std::min(work.next, kept->try_at);
      }
      continue;
    }
    const bool drain = due(kept->drain_at);
    const bool end = due(kept->end_at);
    if (!drain && !end) continue;
    // Without a hold the model is about to be released. A hold that is taken here may become the
    // last one, so it must not be released under the lock.
    if (ModelHold hold = kept->hold.lock())
      (end ? work.end : work.drain).push_back(std::move(hold));
  }
  return work;
}

void ModelKeeper::Do(Work& work, bool wait) {
  for (const ModelHold& model : work.drain) {
    log::Info("model.draining",
              {{"model", model->config.name}, {"version", model->config.version}});
    // This server could not resume the streams: it has only other versions.
    model->engine().BeginDrain(/*streams_leave=*/false);
  }
  // Resumable streams are handed over once their steps in flight have ended. The keeper does not
  // wait for a long step: if it is stuck, CheckProgress fails the model.
  for (const ModelHold& model : work.end) {
    model->engine().BeginDrain(/*streams_leave=*/false);
    model->engine().EndBy(Now() + kHandOver);
  }
  work.drain.clear();
  work.end.clear();
  std::erase_if(work.released, [wait](Models::iterator kept) {
    if (wait || kept->model->engine().TryShutdown(Now())) return false;
    kept->try_at = Now() + kStuckInterval;  // it is stuck
    return true;
  });
}

void ModelKeeper::Destroy(Models models) {
  while (!models.empty()) {
    const ModelConfig config = models.front().model->config;
    models.pop_front();
    log::Info("model.unloaded", {{"model", config.name}, {"version", config.version}});
  }
}

}  // namespace aft::server
