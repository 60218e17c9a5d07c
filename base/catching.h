#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace aft {

// RESOURCE_EXHAUSTED, in words for clients: the process has no memory left for their call.
absl::Status OutOfMemory();

// Does it. What it throws is a status: OutOfMemory(); RESOURCE_EXHAUSTED where the system has no
// more threads; else INTERNAL. No thread of the server may end for one call's sake.
absl::Status Catching(absl::FunctionRef<absl::Status()> work);

}  // namespace aft
