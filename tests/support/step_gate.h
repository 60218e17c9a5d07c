#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace aft {

// Where a test holds the steps of a fake model. Thread-safe.
class StepGate {
 public:
  // Before each step: Hold makes it block; Resume lets all steps through; AllowSteps lets so many
  // more through. A new gate lets all through.
  void Hold();
  void Resume();
  void AllowSteps(int64_t count);

  // Blocks until a step waits for permission.
  void WaitUntilBlocked();
  // Lets so many steps through; blocks until one more waits.
  void RunSteps(int64_t count) {
    AllowSteps(count);
    WaitUntilBlocked();
  }

 protected:
  // For the fake: returns when the step may run.
  void Enter();

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = -1;  // steps; -1: all
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aft
