#pragma once

#include "server/admission/open_streams.h"
#include "server/call/call_environment.h"
#include "server/call/sender.h"
#include "server/transport/active_calls.h"
#include "server/transport/client_identity.h"

namespace aft::server {

// The objects that all gRPC services share. They outlive all calls.
struct TransportEnvironment : CallEnvironment {
  ActiveCalls& active;
  Sender& sender;
  const ClientIdentity& identity;
  OpenStreams& watches;
  OpenStreams& infer_streams;
};

}  // namespace aft::server
