#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/oip/inference.h"
#include "server/api/oip/source.h"

namespace aft::server::oip {

// Decodes a request to an encoder or a bare mixer. `parameters`: sorted names of the parameters
// that only some models have. INVALID_ARGUMENT begins with the name of the wrong tensor or
// parameter.
absl::Status DecodeEncoding(const Source& source, const std::vector<std::string>& parameters,
                            Inference& inference);

}  // namespace aft::server::oip
