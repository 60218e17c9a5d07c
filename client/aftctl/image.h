#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft::client {

// A grey image. The pixels are stored row by row.
struct GreyImage {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<int64_t> pixels;  // [height * width]
  int64_t white = 0;            // the largest value; 0: the pixels are ids of the model already
};

// Reads PGM (P2 and P5: netpbm.sourceforge.net/doc/pgm.html), or pixel ids: one line for each row,
// with spaces or commas between the numbers. INVALID_ARGUMENT says what is wrong.
absl::StatusOr<GreyImage> ReadGreyImage(absl::string_view file);

// The pixels as ids in [0, levels): unchanged, or in equal steps from black to white. `invert` is
// for dark-on-light images when the model expects light on dark.
std::vector<int64_t> PixelIds(const GreyImage& image, int64_t levels, bool invert);

}  // namespace aft::client
