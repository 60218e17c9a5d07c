#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/call/call_environment.h"
#include "server/call/carrier.h"
#include "server/engine/request.h"
#include "server/observability/methods.h"
#include "server/scheduling/time.h"

namespace aft::server {

// What the access log says of a call that has ended.
struct CallReport {
  const Caller& caller;
  Method method;
  const std::string& model;  // as it is called, or as it was asked for
  uint32_t sequences;
  const CallEnd& ending;
  FinishReason reason;  // of an OK status
  Duration total;
  Duration writing;  // how long messages were under way
};

// Writes the line `request.done`.
void LogRequest(const CallReport& report);

// The same of a call that no model has a part in, in fewer fields.
void LogRequestWithoutModel(const Caller& caller, Method method, const absl::Status& status,
                            Duration total);

// Counts a request that was refused before it became a call, in `clients` too where its client is
// known, and writes its line, unless there are too many of them (CallEnvironment::LogsRefusal).
void ReportRefusal(const CallEnvironment& environment, ClientMetrics& clients, const Caller& caller,
                   Method method, const absl::Status& status, Duration total);

// The client does not read; the line `request.stuck`.
void LogStuck(const Caller& caller, Method method, Duration waited);

}  // namespace aft::server
