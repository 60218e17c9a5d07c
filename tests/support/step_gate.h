#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace aft {

// A gate at which a test holds the steps of a fake model. Thread-safe.
class StepGate {
 public:
  // After Hold every step blocks before it begins. Resume lets all steps through; AllowSteps lets
  // `count` more steps through. A new gate lets all steps through.
  void Hold();
  void Resume();
  void AllowSteps(int64_t count);

  // Blocks until a step waits for permission.
  void WaitUntilBlocked();
  // Lets `count` steps through, then blocks until one more waits.
  void RunSteps(int64_t count) {
    AllowSteps(count);
    WaitUntilBlocked();
  }

 protected:
  // The fake calls this. It returns when the step may run.
  void Enter();

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = -1;  // steps; -1: all
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aft
