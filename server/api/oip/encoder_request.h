#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/oip/inference.h"
#include "server/api/oip/source.h"

namespace aft::server::kserve {

// What a request to an encoder or a bare mixer asks for. `parameters`: names of those that not
// every model has, sorted. INVALID_ARGUMENT begins with the name of the tensor or parameter that is
// wrong.
absl::Status DecodeEncoding(const Source& source, const std::vector<std::string>& parameters,
                            Inference& inference);

}  // namespace aft::server::kserve
