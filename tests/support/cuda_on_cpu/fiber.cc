#include "tests/support/cuda_on_cpu/fiber.h"

#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>

namespace cuda_on_cpu {
namespace {

namespace context = boost::context::detail;

constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
constexpr size_t kStackBytes = size_t{256} << 10;

}  // namespace

// What a fiber gets when the process switches to it.
struct Fiber::Arrival {
  Fiber& from;
  Fiber& to;

  static Fiber& Finish(context::transfer_t transfer) {
    const Arrival& arrival = *static_cast<const Arrival*>(transfer.data);
    arrival.from.context_ = transfer.fctx;
    Fiber& here = arrival.to;
    __sanitizer_finish_switch_fiber(here.fake_stack_, &arrival.from.stack_,
                                    &arrival.from.stack_bytes_);
    return here;
  }
  static void Start(context::transfer_t transfer) {
    Finish(transfer).run_();
    std::abort();
  }
};

Fiber::Fiber(void (*run)(), size_t number) : run_(run) {
  void* const memory = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) {
    std::perror("cuda_on_cpu: stack of a fiber");
    std::abort();
  }
  unsigned char* const lowest = static_cast<unsigned char*>(memory) + kPage;
  stack_ = lowest;
  // If all stacks began at the same offset in a page, they would share a few lines of the L1 cache.
  stack_bytes_ = kStackBytes - number % 61 * kLine;
  context_ = context::make_fcontext(lowest + stack_bytes_, stack_bytes_, &Arrival::Start);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  Arrival arrival{from, to};
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.stack_bytes_);
  Arrival::Finish(context::jump_fcontext(to.context_, &arrival));
}

}  // namespace cuda_on_cpu
