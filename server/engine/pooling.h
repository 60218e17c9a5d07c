#pragma once

#include <cstdint>
#include <vector>

#include "server/engine/request.h"

namespace aft::server {

// What a client asked for of a text's vectors, [tokens, width] with one token or more: all of them,
// or one. Sums are made in float64. A vector of length 0 stays as it is when it is normalized.
// `kept`: EncodingRequest::kept.
std::vector<float> Pool(std::vector<float> vectors, int64_t width, Pooling pooling, bool normalize,
                        const std::vector<uint8_t>& kept = {});

// No NaN, no infinity.
bool AllFinite(const std::vector<float>& values);

}  // namespace aft::server
