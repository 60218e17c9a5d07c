#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/catching.h"
#include "server/admission/memory_ledger.h"
#include "server/config/config.h"
#include "server/observability/methods.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/time.h"

namespace aft::server {

// The approximate memory of a call in addition to its message: objects of the transport and of the
// server.
inline constexpr size_t kCallBytes = size_t{16} << 10;

// The objects that the calls of all services share. They outlive the calls.
struct CallEnvironment {
  ServerMetrics& metrics;
  MemoryLedger& ledger;
  RateLimit& refusal_lines;
  LimitsConfig limits;

  // Whether a refused request gets a line in the log. Clients decide how often requests are
  // refused, so `refusal_lines` limits the rate of these lines. When lines were left out,
  // `request.left_out` gives their number before the next one. The metrics count every refusal.
  bool LogsRefusal() const;

  // Counts a call that has ended and whose method has no model.
  void Report(Method method, TimePoint arrival, absl::StatusCode code) const;

  // RESOURCE_EXHAUSTED, in the words of gRPC: `bytes` is more than a message of the method may
  // have. The limit is higher for a message `with_tensors`.
  absl::Status CheckMessage(size_t bytes, bool with_tensors = false) const;

  // The ledger has no room for a call. Counts the refusal and returns the status of the call.
  absl::Status RefuseForMemory() const {
    metrics.memory_refusals.Increment();
    return NoMemory(
        "the requests and unread answers of this client, or of all, fill "
        "max_client_memory_bytes or max_memory_bytes");
  }
  // Refuses a number of bytes (`need.first`) as above if they could ever fit (`need.second`).
  // Otherwise a retry makes no sense, so the status is INVALID_ARGUMENT and no refusal is counted.
  // `what` takes the bytes.
  absl::Status RefuseForMemory(std::pair<size_t, bool> need,
                               absl::string_view what = "the request") const;
};

// Adjusts `charge` and the metric `undelivered` to what a stream holds: `fixed` bytes, and `unsent`
// bytes of answers that its client has not read. Every token passes here twice, so small changes
// are skipped. Returns false if there is no room.
bool HoldUnsent(size_t fixed, size_t unsent, MemoryLedger::Charge& charge, GaugePart& undelivered);

}  // namespace aft::server
