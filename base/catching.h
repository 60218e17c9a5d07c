#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace aft {

// RESOURCE_EXHAUSTED with a message for clients: the process has no memory left for this call.
// Takes no memory, except for the first call of OutOfMemory or Catching in a process.
absl::Status OutOfMemory();

// Runs `work` and turns what it throws into a status: OutOfMemory(), RESOURCE_EXHAUSTED when the
// system has no more threads, otherwise INTERNAL. So a call that fails ends no thread of the
// server.
absl::Status Catching(absl::FunctionRef<absl::Status()> work);

}  // namespace aft
