#include "base/catching.h"

#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aft {
namespace {

constexpr absl::string_view kPrefix = "memory: ";

}  // namespace

absl::Status NoMemory(absl::string_view why) {
  return absl::ResourceExhaustedError(absl::StrCat(kPrefix, why));
}

bool IsNoMemory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && absl::StartsWith(status.message(), kPrefix);
}

absl::Status OutOfMemory() {
  // Copies of a status share one object, so they take no memory.
  static const absl::Status& status =
      *new absl::Status(NoMemory("the process has none left for this call"));
  return status;
}

absl::Status Catching(absl::FunctionRef<absl::Status()> work) {
  const absl::Status no_memory = OutOfMemory();  // exists before memory is short
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return no_memory;
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
