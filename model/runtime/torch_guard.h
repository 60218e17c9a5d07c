#pragma once

#include <exception>
#include <new>
#include <system_error>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aft {

// Runs fn, which returns absl::Status or absl::StatusOr, and turns what LibTorch or the standard
// library throws into a status.
template <typename Fn>
std::invoke_result_t<Fn> GuardTorch(const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return absl::InternalError(error.what());
    }
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("LibTorch: ", error.what()));
  }
}

}  // namespace aft
