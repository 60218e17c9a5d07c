#ifndef AFT_TESTS_INTEGRATION_SLOW_LOADER_H_
#define AFT_TESTS_INTEGRATION_SLOW_LOADER_H_

#include "base/mutex.h"
#include "server/registry/model_registry.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {

// Loads fake models, but not before it is told to. REQUIRES: released before the server stops.
class SlowLoader {
 public:
  ModelLoader AsLoader() {
    return [this, load = FakeLoader()](const LoadOptions& o) {
      MutexLock lock(mutex_);
      while (!released_) changed_.Wait(mutex_);
      return load(o);
    };
  }

  void Release() {
    MutexLock lock(mutex_);
    released_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aft::server

#endif  // AFT_TESTS_INTEGRATION_SLOW_LOADER_H_
