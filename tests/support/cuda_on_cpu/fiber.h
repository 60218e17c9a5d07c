#pragma once

#include <cstddef>

namespace cuda_on_cpu {

// A stack on which a function is suspended, or the host's own stack. AddressSanitizer is told of
// every switch. An overflow of a stack hits its guard page and is reported.
class Fiber {
 public:
  // The calling thread's own stack.
  Fiber() = default;
  // A fiber that calls `run`, which never returns, at the first switch to it. Stacks are never
  // freed: a fiber is made once and runs one CUDA thread after another. The stacks of fibers with
  // different `number`s begin at different places of the processor's caches.
  Fiber(void (*run)(), size_t number);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Switches from the running fiber to another one. It returns when a fiber switches back.
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
