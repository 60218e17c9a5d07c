#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace aft::fuzz {

// Makes a file of tensors from an input. The input is either "raw", a newline and the file; or the
// header, a newline and the data, to which this function adds the length of the header.
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
