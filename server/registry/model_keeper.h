#pragma once

#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/registry/served_model.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Owns every model that is loaded, and is the only one that destroys one.
//
// Who may destroy a model: requests hold their model to their end, and a request may end, and let
// go, on the thread of the model's own engine; an engine's destructor joins that thread. So a hold
// owns nothing. When the last one is gone, wherever that was, the keeper's own thread is told, and
// it ends the engine and destroys the model. What follows: the memory of a model is freed soon
// after its last request, no thread of a call ever waits for that, and there is no order in which a
// sink, a call and the registry let go that joins a thread with itself.
//
// A model that is retired serves the requests that hold it: to their end, if that comes soon; else
// it drains, as a server does.
//
// Thread-safety: all methods may be called from any thread, but the destructor.
class ModelKeeper {
 public:
  ModelKeeper() : thread_([this] { Run(); }) {}
  // Waits for the last hold, and for every engine's thread.
  ~ModelKeeper();

  // The first hold on a model. From the moment that the last one is gone the model is ended.
  ModelHold Keep(std::unique_ptr<ServedModel> model);

  // Gives the registry's hold back; it is no good any more. What else holds the model may do so
  // undisturbed until `drain_at`. Then its engine drains: what waits for a slot ends with
  // UNAVAILABLE, resumable streams are handed over, and the others have until `end_at`.
  // `until_gone` is let go of when the model is destroyed, or in Shutdown.
  void Retire(ModelHold hold, TimePoint drain_at, TimePoint end_at,
              std::shared_ptr<void> until_gone = nullptr);

  // All that anybody holds.
  std::vector<ModelHold> Held() const;

  // Ends every engine, and at `deadline` what requests it has. False: the thread of one is stuck.
  // Holds stay good. Idempotent.
  bool Shutdown(TimePoint deadline);

 private:
  struct Kept {
    std::shared_ptr<void> until_gone;  // first: it goes behind the model
    std::unique_ptr<ServedModel> model;
    std::weak_ptr<const ServedModel> hold;
    bool released = false;  // the last hold is gone
    // Once it is retired; max(): done, or not to be done.
    TimePoint drain_at = TimePoint::max();
    TimePoint end_at = TimePoint::max();
    TimePoint try_at = TimePoint::min();  // later than that: its thread was stuck
  };
  using Models = std::list<Kept>;

  // What is due.
  struct Work {
    Models released;
    std::vector<ModelHold> drain;
    std::vector<ModelHold> end;
    TimePoint next = TimePoint::max();  // when more will be
    bool empty() const { return released.empty() && drain.empty() && end.empty(); }
  };

  void Run();
  Work TakeWork(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves those in `work` whose threads are stuck.
  static void Do(Work& work, bool wait);
  bool IsEnding() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  Models models_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is at what is not in the list
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft::server
