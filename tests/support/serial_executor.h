#ifndef AFT_TESTS_SUPPORT_SERIAL_EXECUTOR_H_
#define AFT_TESTS_SUPPORT_SERIAL_EXECUTOR_H_

#include <cstdint>

#include "model/mixers/workspace.h"

namespace aft {

// Runs everything on the caller.
class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void For(int64_t n, int64_t /*grain*/,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override {
    if (n > 0) fn(0, n, 0);
  }
};

}  // namespace aft

#endif  // AFT_TESTS_SUPPORT_SERIAL_EXECUTOR_H_
