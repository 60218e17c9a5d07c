#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/engine/request.h"

namespace aft::server {

// Collects the vectors of a text, which arrive in parts and in order. Keeps all of them or one, as
// the client asked. A mean is summed in float64, token by token, so the cut into parts changes no
// bit of it.
class TextVectors {
 public:
  // `tokens` is the number of tokens that have vectors, at least one. `width` is that of a vector.
  TextVectors(Pooling pooling, bool normalize, size_t tokens, int64_t width)
      : pooling_(pooling),
        normalize_(normalize),
        tokens_(tokens),
        width_(static_cast<size_t>(width)) {}

  // Adds the next vectors, [tokens, width], one or more. With kLast, vectors before those of the
  // last part may be left out.
  void Add(std::vector<float> vectors);
  // Returns the result. May be called once, after all vectors were added. Normalizing leaves a
  // vector of length 0 as it is.
  std::vector<float> Take();

 private:
  const Pooling pooling_;
  const bool normalize_;
  const size_t tokens_;
  const size_t width_;
  std::vector<float> kept_;
  std::vector<double> sum_;  // used instead with kMean
};

// Pools all vectors of a text, [tokens, width], at once. `kept`: EncodingRequest::kept.
std::vector<float> Pool(std::vector<float> vectors, int64_t width, Pooling pooling, bool normalize,
                        const std::vector<uint8_t>& kept = {});

// True if no value is NaN or infinite.
bool AllFinite(const std::vector<float>& values);

}  // namespace aft::server
