#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aft {

// Prepends the name of a file to an error: "path: message". OK stays OK.
inline absl::Status InFile(absl::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

template <typename T>
absl::StatusOr<T> InFile(absl::string_view path, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return InFile(path, value.status());
}

}  // namespace aft
