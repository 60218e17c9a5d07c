#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/engine/request.h"

namespace aft::server {

// Takes the vectors of a text, in parts and in order, and keeps as much as the client asked for:
// all of them, or one. A mean is a sum in float64, token by token, so the cut decides no bit of it.
class TextVectors {
 public:
  // `tokens`: those that have vectors, at least one. `width`: of a vector.
  TextVectors(Pooling pooling, bool normalize, size_t tokens, int64_t width)
      : pooling_(pooling),
        normalize_(normalize),
        tokens_(tokens),
        width_(static_cast<size_t>(width)) {}

  // The next ones, [tokens, width], one or more. With kLast those before the last part may be left
  // out.
  void Add(std::vector<float> vectors);
  // Ends it. A vector of length 0 stays as it is when it is normalized.
  std::vector<float> Take();

 private:
  const Pooling pooling_;
  const bool normalize_;
  const size_t tokens_;
  const size_t width_;
  std::vector<float> kept_;
  std::vector<double> sum_;  // with kMean, instead
};

// Does it with all vectors of a text, [tokens, width], at once. `kept`: EncodingRequest::kept.
std::vector<float> Pool(std::vector<float> vectors, int64_t width, Pooling pooling, bool normalize,
                        const std::vector<uint8_t>& kept = {});

// No NaN, no infinity.
bool AllFinite(const std::vector<float>& values);

}  // namespace aft::server
