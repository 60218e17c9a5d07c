#include "server/call/call_ids.h"

#include <random>

#include "absl/strings/str_format.h"

namespace aft::server {

uint64_t RandomUint64() {
  thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string NewId() { return absl::StrFormat("%016x%016x", RandomUint64(), RandomUint64()); }

}  // namespace aft::server
