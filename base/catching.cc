#include "base/catching.h"

#include <exception>
#include <new>

namespace aft {

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError("memory: the process has none left for this call");
}

absl::Status Catching(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace aft
