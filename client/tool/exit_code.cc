#include "client/tool/exit_code.h"

#include "client/lib/error_details.h"

namespace aft::client {

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  const ErrorDetails details = GetErrorDetails(status);
  switch (details.origin) {
    case ErrorOrigin::kUnreachable:
      return kExitUnreachable;
    case ErrorOrigin::kConnectionLost:
    case ErrorOrigin::kProtocol:
      return kExitBroken;
    case ErrorOrigin::kCaller:
      if (status.code() == absl::StatusCode::kInvalidArgument) return kExitUsage;
      break;
    case ErrorOrigin::kServer:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return kExitRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return details.may_retry ? kExitBusy : kExitRefused;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    default:
      return kExitFailed;
  }
}

}  // namespace aft::client
