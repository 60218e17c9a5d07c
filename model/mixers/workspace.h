#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace aft {

// Splits work over threads. The only implementation that starts threads is
// model/runtime/parallel.h.
class Executor {
 public:
  virtual ~Executor() = default;

  virtual int threads() const = 0;

  // Calls fn(begin, end, thread) on disjoint ranges that cover [0, n), and returns when all are
  // done. Each range has at least `grain` items unless n is smaller; 0 <= thread < threads(). A
  // thread may get several ranges, one after the other. fn must not throw. Results must not depend
  // on the ranges.
  virtual void For(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t, int64_t, int)> fn) const = 0;
};

// The memory and threads that Forward may use in addition to its arguments. Nothing is allocated in
// steady state.
struct Workspace {
  const Executor* executor = nullptr;
  float* scratch = nullptr;    // 64-byte aligned; thread i owns the part at i * scratch_stride
  int64_t scratch_stride = 0;  // floats
  // Room for the quantized rows of one product of the widest layer (kernels/linear/linear.h); null
  // if products read numbers as they are.
  void* quantized = nullptr;
};

}  // namespace aft
