#include "model/train/images.h"

#include <fstream>
#include <vector>

#include "ATen/ops/tensor.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "model/train/examples.h"

namespace aft {
namespace {

// Appends an image to `pixels`.
absl::Status ReadPixels(const std::vector<absl::string_view>& fields, int64_t vocab_size,
                        std::vector<int64_t>* pixels) {
  for (size_t i = 0; i + 1 < fields.size(); ++i) {
    int64_t pixel = 0;
    if (!absl::SimpleAtoi(fields[i], &pixel) || pixel < 0 || pixel >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("pixel ", i, ": must be an integer in [0, ",
                                                     vocab_size, "), got ", fields[i]));
    }
    pixels->push_back(pixel);
  }
  return absl::OkStatus();
}

absl::Status CheckSize(int64_t pixels, int64_t width, const NetworkConfig& network) {
  if (pixels == 0 || pixels % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(pixels, " pixels are not an image of ", width, " columns"));
  }
  if (network.max_seq_len == 0 || pixels <= network.max_seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(pixels, " pixels; network.max_seq_len is ", network.max_seq_len));
}

}  // namespace

absl::StatusOr<LabelledImages> ReadImages(const std::string& path, const NetworkConfig& network,
                                          int64_t width) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<int64_t> pixels;
  std::vector<int64_t> classes;
  int64_t size = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(absl::StripSuffix(line, "\r"), ',');
    const auto read = [&]() -> absl::Status {
      if (classes.empty()) size = static_cast<int64_t>(fields.size()) - 1;
      if (static_cast<int64_t>(fields.size()) != size + 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("has ", fields.size() - 1, " pixels, the first line has ", size));
      }
      AFT_RETURN_IF_ERROR(CheckSize(size, width, network));
      AFT_RETURN_IF_ERROR(ReadPixels(fields, network.vocab_size, &pixels));
      AFT_ASSIGN_OR_RETURN(classes.emplace_back(), FindLabel(network, fields.back()));
      return absl::OkStatus();
    };
    const auto number = classes.size() + 1;
    if (const absl::Status status = read(); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", number, ": ", status.message()));
    }
  }
  // A folder can be opened, and then no line of it can be read.
  if (file.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  if (classes.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no images"));
  const auto count = static_cast<int64_t>(classes.size());
  return LabelledImages{at::tensor(pixels, at::kLong).view({count, size / width, width}),
                        at::tensor(classes, at::kLong)};
}

}  // namespace aft
