#pragma once

#include <cstddef>

namespace cuda_on_cpu {

// A stack that waits to go on, or the host's own. AddressSanitizer is told of every switch; an
// overflow of a stack ends in its guard page, and is reported.
class Fiber {
 public:
  // The calling thread's own stack.
  Fiber() = default;
  // A fiber that calls `run`, which never returns, when first switched to. Stacks are never freed:
  // a fiber is made once and runs one CUDA thread after another. `number`: fibers with different
  // numbers get stacks that lie differently in the processor's caches.
  Fiber(void (*run)(), size_t number);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the running fiber to another one; returns when somebody switches back.
  static void Switch(Fiber& from, Fiber& to);

 private:
  struct Arrival;

  void (*run_)() = nullptr;
  void* context_ = nullptr;
  const void* stack_ = nullptr;  // lowest address
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

}  // namespace cuda_on_cpu
