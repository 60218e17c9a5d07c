#pragma once

#include <memory>
#include <vector>

#include "server/engine/job.h"
#include "server/engine/output_builder.h"
#include "server/engine/request.h"

namespace aft::server {

// The streams of one request for as many answers as it has sinks. The first reads the prompt and
// leads the others (Sequence::Lead); the i-th has the request's seed + i. What is counted once, the
// prompt's tokens and the reservation, is the first one's. `output`: of a stream that has yet to
// begin. REQUIRES: there are sinks.
std::vector<std::unique_ptr<Job>> MakeGroup(const GenerationRequest& request,
                                            const std::vector<std::shared_ptr<TokenSink>>& sinks,
                                            const OutputBuilder& output);

}  // namespace aft::server
