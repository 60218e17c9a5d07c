#include "client/aftctl/image.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace aft::client {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 24;
constexpr int64_t kMostWhite = 65535;

// Takes the next number off the front of `left`, with the white space and comments before it and
// one character of white space after it.
absl::StatusOr<int64_t> TakeNumber(absl::string_view& left, absl::string_view what, int64_t min,
                                   int64_t max) {
  left = absl::StripLeadingAsciiWhitespace(left);
  while (absl::StartsWith(left, "#")) {
    left.remove_prefix(std::min(left.find('\n'), left.size()));
    left = absl::StripLeadingAsciiWhitespace(left);
  }
  const auto* const end = std::find_if(left.begin(), left.end(), [](char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c));
  });
  const absl::string_view word = left.substr(0, static_cast<size_t>(end - left.begin()));
  int64_t number = 0;
  if (!absl::SimpleAtoi(word, &number) || number < min || number > max) {
    return absl::InvalidArgumentError(absl::StrCat("PGM: ", what, ": must be in [", min, ", ", max,
                                                   "], got \"", word.substr(0, 20), "\""));
  }
  left.remove_prefix(std::min(word.size() + 1, left.size()));
  return number;
}

absl::StatusOr<GreyImage> ReadPgm(absl::string_view left, bool binary) {
  GreyImage image;
  AFT_ASSIGN_OR_RETURN(image.width, TakeNumber(left, "width", 1, kMostPixels));
  AFT_ASSIGN_OR_RETURN(image.height, TakeNumber(left, "height", 1, kMostPixels / image.width));
  AFT_ASSIGN_OR_RETURN(image.white, TakeNumber(left, "maxval", 1, kMostWhite));
  const auto count = static_cast<size_t>(image.height * image.width);
  const size_t bytes = !binary ? 0 : image.white < 256 ? 1 : 2;
  if (left.size() < count * bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("PGM: ends after ", left.size(), " of ", count * bytes, " bytes of pixels"));
  }
  for (size_t i = 0; i < count; ++i) {
    if (!binary) {
      AFT_ASSIGN_OR_RETURN(image.pixels.emplace_back(), TakeNumber(left, "pixel", 0, image.white));
      continue;
    }
    int64_t pixel = 0;
    for (size_t b = 0; b < bytes; ++b) {
      pixel = pixel << 8 | static_cast<unsigned char>(left[i * bytes + b]);
    }
    if (pixel > image.white) {
      return absl::InvalidArgumentError(
          absl::StrCat("PGM: pixel ", i, ": is ", pixel, ", maxval is ", image.white));
    }
    image.pixels.push_back(pixel);
  }
  return image;
}

absl::StatusOr<GreyImage> ReadRows(absl::string_view file) {
  GreyImage image;
  for (const absl::string_view line : absl::StrSplit(file, '\n', absl::SkipWhitespace())) {
    int64_t columns = 0;
    for (const absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(", \t\r"), absl::SkipEmpty())) {
      uint32_t id = 0;
      if (!absl::SimpleAtoi(word, &id)) {
        return absl::InvalidArgumentError(
            "is neither PGM (P2 or P5) nor rows of numbers, the ids of pixels");
      }
      image.pixels.push_back(id);
      ++columns;
    }
    if (image.height > 0 && columns != image.width) {
      return absl::InvalidArgumentError(absl::StrCat("row ", image.height + 1, " has ", columns,
                                                     " pixels, the first row ", image.width));
    }
    image.width = columns;
    ++image.height;
  }
  if (image.height == 0) return absl::InvalidArgumentError("is empty");
  return image;
}

}  // namespace

absl::StatusOr<GreyImage> ReadGreyImage(absl::string_view file) {
  absl::string_view left = file;
  if (absl::ConsumePrefix(&left, "P2")) return ReadPgm(left, /*binary=*/false);
  if (absl::ConsumePrefix(&left, "P5")) return ReadPgm(left, /*binary=*/true);
  return ReadRows(file);
}

std::vector<int64_t> PixelIds(const GreyImage& image, int64_t levels, bool invert) {
  std::vector<int64_t> ids = image.pixels;
  const int64_t top = levels - 1;
  for (int64_t& id : ids) {
    if (image.white > 0) id = (id * top * 2 + image.white) / (2 * image.white);
    if (invert) id = top - id;
  }
  return ids;
}

}  // namespace aft::client
