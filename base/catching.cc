#include "base/catching.h"

#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace aft {

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError("memory: the process has none left for this call");
}

absl::Status Catching(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return absl::InternalError(error.what());
    }
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace aft
