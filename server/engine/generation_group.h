#pragma once

#include <memory>
#include <vector>

#include "server/engine/job.h"
#include "server/engine/output_builder.h"
#include "server/engine/request.h"

namespace aft::server {

// Makes the streams of one request, one for each sink. The first one reads the prompt and leads the
// others (Sequence::Lead). The i-th stream has the request's seed + i. Only the first stream has
// the prompt's tokens and the reservation. `output`: the builder of a stream without output yet,
// which is copied for each stream. REQUIRES: there are sinks.
std::vector<std::unique_ptr<Job>> MakeGroup(const GenerationRequest& request,
                                            const std::vector<std::shared_ptr<TokenSink>>& sinks,
                                            const OutputBuilder& output);

}  // namespace aft::server
