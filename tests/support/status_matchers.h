#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace aft {

// The status of an absl::Status, an absl::StatusOr or a grpc::Status, whose codes are the same
// numbers.
template <typename Any>
absl::Status StatusOf(const Any& any) {
  if constexpr (requires { any.error_code(); }) {
    return {static_cast<absl::StatusCode>(any.error_code()), any.error_message()};
  } else if constexpr (requires { any.status(); }) {
    return any.status();
  } else {
    return any;
  }
}

// Matches a status, as above, with this code and a message that `message` matches.
MATCHER_P2(StatusIs, code, message,
           absl::StrCat(negation ? "isn't " : "is ", absl::StatusCodeToString(code),
                        " with a message that ",
                        testing::DescribeMatcher<std::string>(message, false))) {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status.ToString() << "; ";
  return status.code() == code &&
         testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

}  // namespace aft
