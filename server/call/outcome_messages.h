#pragma once

#include "aft/v1/inference.pb.h"
#include "server/engine/request.h"

namespace aft::server {

// Converts parts of an outcome to messages of the API.
v1::Usage EncodeUsage(const Usage& usage);
v1::Timings EncodeTimings(const Timings& timings);

}  // namespace aft::server
