#pragma once

#include <cstddef>
#include <cstdint>

#include "server/admission/memory_ledger.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/rpc/active_calls.h"
#include "server/rpc/client_identity.h"

namespace aft::server {

// What a call costs beside its message: gRPC's part of a stream and ours, about.
inline constexpr size_t kCallBytes = size_t{16} << 10;

// What the calls of all services share. Outlives them all.
struct CallEnvironment {
  ServerMetrics& metrics;
  ActiveCalls& active;
  MemoryLedger& ledger;
  const ClientIdentity& identity;
  LimitsConfig limits;
};

}  // namespace aft::server
