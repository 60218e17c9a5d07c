#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace aft::fuzz {

// A file of tensors as inputs have it: "raw" and a newline, then the file; or the header, a newline
// and the data, to which the length is added here.
inline std::string FileOf(absl::string_view input) {
  if (absl::ConsumePrefix(&input, "raw\n")) return std::string(input);
  const size_t newline = std::min(input.find('\n'), input.size());
  const uint64_t length = newline;
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file.append(input.data(), newline);
  input.remove_prefix(std::min(newline + 1, input.size()));
  return file.append(input.data(), input.size());
}

}  // namespace aft::fuzz
