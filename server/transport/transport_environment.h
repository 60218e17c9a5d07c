#pragma once

#include "server/admission/open_streams.h"
#include "server/call/call_environment.h"
#include "server/transport/active_calls.h"
#include "server/transport/client_identity.h"

namespace aft::server {

// What all gRPC services share. It outlives all their calls.
struct TransportEnvironment : CallEnvironment {
  ActiveCalls& active;
  const ClientIdentity& identity;
  OpenStreams& watches;
  OpenStreams& infer_streams;
};

}  // namespace aft::server
