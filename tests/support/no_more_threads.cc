#include "tests/support/no_more_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {

constinit std::atomic<bool> refuse{false};

}  // namespace

aft::NoMoreThreads::NoMoreThreads() { refuse = true; }
aft::NoMoreThreads::~NoMoreThreads() { refuse = false; }

// In the place of libc's, or of a sanitizer's, for the whole program and its shared libraries.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return refuse ? EAGAIN : create(thread, attributes, start, argument);
}
