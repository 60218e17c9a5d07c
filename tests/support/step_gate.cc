#include "tests/support/step_gate.h"

namespace aft {

void StepGate::Hold() {
  MutexLock lock(mutex_);
  allowed_ = 0;
}

void StepGate::Resume() {
  MutexLock lock(mutex_);
  allowed_ = -1;
  changed_.NotifyAll();
}

void StepGate::AllowSteps(int64_t count) {
  MutexLock lock(mutex_);
  allowed_ = (allowed_ < 0 ? 0 : allowed_) + count;
  // This resets blocked_, so that a WaitUntilBlocked after it waits for the next block.
  blocked_ = false;
  changed_.NotifyAll();
}

void StepGate::WaitUntilBlocked() {
  MutexLock lock(mutex_);
  while (!blocked_) changed_.Wait(mutex_);
}

void StepGate::Enter() {
  MutexLock lock(mutex_);
  while (allowed_ == 0) {
    blocked_ = true;
    changed_.NotifyAll();
    changed_.Wait(mutex_);
  }
  blocked_ = false;
  if (allowed_ > 0) --allowed_;
}

}  // namespace aft
