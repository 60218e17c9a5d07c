#include "tests/support/no_more_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace {

constinit std::atomic<bool> refuse{false};
constinit std::atomic<int> left_over{0};

// Whether the start function of a thread belongs to the standard library.
bool IsStdThread(void* (*start)(void*)) {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(start), &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libstdc++") != nullptr;
}

}  // namespace

aft::NoMoreThreads::NoMoreThreads(int left) {
  left_over = left;
  refuse = true;
}
aft::NoMoreThreads::~NoMoreThreads() { refuse = false; }

// Replaces the function of libc or of a sanitizer in the whole program and its shared libraries.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const bool refused = refuse && IsStdThread(start) && left_over.fetch_sub(1) <= 0;
  return refused ? EAGAIN : create(thread, attributes, start, argument);
}
