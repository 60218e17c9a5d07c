#pragma once

#include <pthread.h>

#include <array>
#include <string>

namespace aft {

// The name of the calling thread.
inline std::string ThreadName() {
  std::array<char, 16> name = {};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

}  // namespace aft
