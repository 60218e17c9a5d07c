#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aft {

// RESOURCE_EXHAUSTED because memory is short, which may be over soon. The message begins with
// "memory: ", and that of no other status does.
absl::Status NoMemory(absl::string_view why);
bool IsNoMemory(const absl::Status& status);

// NoMemory with a message for clients: the process has no memory left for this call.
// Takes no memory, except for the first call of OutOfMemory or Catching in a process.
absl::Status OutOfMemory();

// Runs `work` and turns what it throws into a status: OutOfMemory(), RESOURCE_EXHAUSTED when the
// system has no more threads, otherwise INTERNAL. So a call that fails ends no thread of the
// server.
absl::Status Catching(absl::FunctionRef<absl::Status()> work);

}  // namespace aft
