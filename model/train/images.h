#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"

namespace aft {

// Images of the same size, each with its class.
struct LabelledImages {
  at::Tensor pixels;   // [N, H, W] int64, ids of the network's vocabulary
  at::Tensor classes;  // [N] int64, indices of the network's labels

  int64_t count() const { return pixels.size(0); }
  LabelledImages Slice(int64_t begin, int64_t end) const {
    return {pixels.slice(0, begin, end), classes.slice(0, begin, end)};
  }
};

// Reads a file of lines "pixel,pixel,...,label", with the pixels row by row in rows of `width`.
// Lines end with "\n" or "\r\n".
// This is the format of scikit-learn's digits. `network` is a classifier. Errors: NOT_FOUND, or
// INVALID_ARGUMENT naming file and line: an incomplete image, images of different sizes, a pixel
// outside the vocabulary, an unknown label, an image that is too long for the network.
absl::StatusOr<LabelledImages> ReadImages(const std::string& path, const NetworkConfig& network,
                                          int64_t width);

}  // namespace aft
