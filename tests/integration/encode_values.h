#pragma once

#include <vector>

#include "tests/integration/server_fixture.h"

namespace aft::server {

// All numbers that a stream of Encode has brought, in order.
inline std::vector<float> ValuesOf(const EncodeStream& stream) {
  std::vector<float> values;
  for (const v1::EncodeResponse& event : stream.events) {
    values.insert(values.end(), event.vectors().values().begin(), event.vectors().values().end());
  }
  return values;
}

}  // namespace aft::server
