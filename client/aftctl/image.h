#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// A grey image; pixels row by row.
struct GreyImage {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<int64_t> pixels;  // [height * width]
  int64_t white = 0;            // their largest value; 0: they are a model's ids already
};

// Reads PGM (P2 and P5: netpbm.sourceforge.net/doc/pgm.html), or lines of numbers with spaces or
// commas between them, a line for each row of pixels, which are ids.
// INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<GreyImage> ReadGreyImage(absl::string_view file);

// The pixels as ids [0, levels): as they are, or in equal steps from black to white. `invert`:
// of images that are dark on light where the model's are light on dark.
std::vector<int64_t> PixelIds(const GreyImage& image, int64_t levels, bool invert);

}  // namespace aft::client
