#ifndef AFT_SERVER_ENGINE_INBOX_H_
#define AFT_SERVER_ENGINE_INBOX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/stream.h"
#include "server/observability/metrics.h"
#include "server/scheduling/admission_budget.h"
#include "server/scheduling/request.h"

namespace aft::server {

// Everything that crosses from other threads to the engine thread, and the admission budget, behind
// one mutex that is only ever held for a moment. Thread-safe.
class Inbox {
 public:
  // What has come in since the last Take.
  struct Batch {
    std::vector<std::unique_ptr<Stream>> added;  // in arrival order
    std::vector<Engine::Handle> cancelled;
    std::optional<TimePoint> stop_at;  // set once Stop was called; `added` stays empty from then on
  };

  explicit Inbox(AdmissionBudget budget) : budget_(budget) {}

  struct AddResult {
    Engine::Handle handle = 0;         // unless refused
    std::optional<Rejection> refused;  // kDraining, kQueuedRequests or kQueuedTokens
  };
  AddResult Add(std::unique_ptr<Stream> stream);

  void Cancel(Engine::Handle handle);

  // Add refuses from now on.
  void Close();

  // Close, and the engine thread is to end by `deadline`; of several calls the earliest counts.
  void Stop(TimePoint deadline);

  // For the engine thread: replaces `batch` by what has come in. With `wait` it blocks until there
  // is something.
  void Take(bool wait, Batch& batch);

  // These streams, just taken from the scheduler's queue, hold a slot now.
  void LeaveQueue(const std::vector<Sequence*>& started);

  // These streams have ended.
  void Leave(const std::vector<std::unique_ptr<Stream>>& ended);

  Engine::Load load() const;

 private:
  mutable Mutex mutex_;
  CondVar arrived_;
  AdmissionBudget budget_ ABSL_GUARDED_BY(mutex_);
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Engine::Handle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_INBOX_H_
