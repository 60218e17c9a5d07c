#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/admission/memory_ledger.h"
#include "server/config/config.h"
#include "server/observability/methods.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/scheduling/time.h"

namespace aft::server {

// What a call costs beside its message: the transport's part of it and ours, about.
inline constexpr size_t kCallBytes = size_t{16} << 10;

// What the calls of all services share. Outlives them all.
struct CallEnvironment {
  ServerMetrics& metrics;
  MemoryLedger& ledger;
  RateLimit& refusal_lines;
  LimitsConfig limits;

  // Whether a request that was refused has its line in the log. Its client decides how often that
  // happens, so `refusal_lines` bounds them; the line `request.left_out` says how many have none,
  // before the next one that has. Metrics count all.
  bool LogsRefusal() const;

  // A call of a method of no model has ended: its metrics.
  void Report(Method method, TimePoint arrival, absl::StatusCode code) const;

  // RESOURCE_EXHAUSTED, in gRPC's words: a message of `bytes` is larger than its method may take,
  // which is more `with_tensors`.
  absl::Status CheckMessage(size_t bytes, bool with_tensors = false) const;

  // The ledger had no room for a call: what it ends with. Counts it.
  absl::Status RefuseForMemory() const {
    metrics.memory_refusals.Increment();
    return absl::ResourceExhaustedError(
        "memory: the requests and unread answers of this client, or of all, fill "
        "max_client_memory_bytes or max_memory_bytes");
  }
};

// A stream holds `fixed` bytes and, of answers that its client has not read, `unsent`: the charge
// follows, and so does `undelivered`; once in a while only, as every token passes here twice.
// False: there is no room.
bool HoldUnsent(size_t fixed, size_t unsent, MemoryLedger::Charge& charge, GaugePart& undelivered);

}  // namespace aft::server
