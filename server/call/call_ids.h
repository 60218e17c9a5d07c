#pragma once

#include <cstdint>
#include <string>

#include "server/call/trace_context.h"

namespace aft::server {

// From the system's entropy source.
uint64_t RandomUint64();

// 32 hexadecimal digits.
std::string NewId();

// What a call is known by, to its client and in the log.
struct CallIds {
  std::string request;  // the client's `x-request-id`, or a new one
  TraceContext trace;
};

}  // namespace aft::server
