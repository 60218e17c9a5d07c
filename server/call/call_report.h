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

// The facts about a call that has ended, for the access log.
struct CallReport {
  const Caller& caller;
  Method method;
  const std::string& model;  // the model's own name, or the requested one if none was found
  uint32_t sequences;
  const CallEnd& ending;
  FinishReason reason;  // only if the status is OK
  Duration total;
  Duration writing;  // how long messages were under way in total
};

// Writes the line `request.done`.
void LogRequest(const CallReport& report);

// Counts a call that has ended and whose method has no model. Writes its `request.done`, with fewer
// fields, unless it was refused and there are too many refusals (CallEnvironment::LogsRefusal).
void ReportWithoutModel(const CallEnvironment& environment, const Caller& caller, Method method,
                        TimePoint arrival, const absl::Status& status);

// Counts a request that was refused before it became a call; in `clients` too if its client is
// known. Writes its `request.done` unless there are too many refusals
// (CallEnvironment::LogsRefusal).
void ReportRefusal(const CallEnvironment& environment, ClientMetrics& clients, const Caller& caller,
                   Method method, const absl::Status& status, Duration total);

// Writes the line `request.stuck`: the client has not read for the time `waited`.
void LogStuck(const Caller& caller, Method method, Duration waited);

}  // namespace aft::server
