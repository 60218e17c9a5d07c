#pragma once

#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/config/memory_plan.h"
#include "server/registry/served_model.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Owns every loaded model, and is the only object that destroys models. README.md says why a hold
// owns nothing. No thread of a call waits until a model is destroyed.
//
// A retired model serves the requests that hold it. If they do not end soon, it refuses those that
// wait, and later it ends the others.
//
// Thread-safety: all methods may be called from any thread, except the destructor.
class ModelKeeper {
 public:
  ModelKeeper() : thread_([this] { Run(); }) {}
  // Waits for the last hold, and for every engine's thread.
  ~ModelKeeper();

  // Returns the first hold on a model. When the last one is released, the model is ended.
  ModelHold Keep(std::unique_ptr<ServedModel> model);

  // Takes the registry's hold, which must not be used any more. Requests that hold the model
  // continue undisturbed until `drain_at`. Then requests that wait for a slot end with UNAVAILABLE,
  // and the others have until `end_at`. Then resumable streams are handed over, and the rest ends
  // with UNAVAILABLE.
  // `until_gone` is released when the model is destroyed, or in Shutdown.
  void Retire(ModelHold hold, TimePoint drain_at, TimePoint end_at,
              std::shared_ptr<void> until_gone = nullptr);

  // Returns a hold on each model that is still held.
  std::vector<ModelHold> Held() const;

  // The parts of the memory plan of all models in memory. A model that nothing holds counts until
  // the thread of its engine has ended.
  std::vector<MemoryPart> Memory() const;

  // Ends every engine, and at `deadline` the requests that it still has. Returns false if the
  // thread of an engine is stuck. Holds stay valid. Idempotent.
  bool Shutdown(TimePoint deadline);

 private:
  struct Kept {
    std::shared_ptr<void> until_gone;  // first: destroyed after the model
    std::unique_ptr<ServedModel> model;
    std::weak_ptr<const ServedModel> hold;
    bool released = false;  // the last hold was released
    // When requests that wait end, and when all end. max(): the model is not retired, or this was
    // done.
    TimePoint drain_at = TimePoint::max();
    TimePoint end_at = TimePoint::max();
    TimePoint try_at = TimePoint::min();  // when to try again to end a thread that was stuck
  };
  using Models = std::list<Kept>;

  // The work that is due.
  struct Work {
    std::vector<Models::iterator> released;  // to be ended
    std::vector<ModelHold> drain;
    std::vector<ModelHold> end;
    TimePoint next = TimePoint::max();  // when more is due
    bool empty() const { return released.empty() && drain.empty() && end.empty(); }
  };

  void Run();
  Work TakeWork(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does the work, without the lock. Afterwards work.released has those models whose threads have
  // ended. If `wait` is true, it waits until the threads of all of them have ended.
  static void Do(Work& work, bool wait);
  // Destroys models whose threads have ended, without the lock.
  static void Destroy(Models models);
  bool IsEnding() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  Models models_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // the thread works without the lock
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
