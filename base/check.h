#pragma once

#include <cstdio>
#include <cstdlib>

// AFT_CHECK(condition): for broken invariants of our own code only, never for input. It prints the
// place and aborts, in every build type. (It is not called CHECK: LibTorch's headers define that.)
#define AFT_CHECK(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: AFT_CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
