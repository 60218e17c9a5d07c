#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "base/utf8.h"

// Turns the values of flags into fields and times of calls.
namespace aft::client {

// Rounds up, because 0 often means that there is no limit.
inline std::chrono::milliseconds ToMilliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

// Sets the text in the field for it: `raw` if it is not valid UTF-8.
template <typename Request>
void SetText(std::string text, Request& request) {
  if (ToValidUtf8(text) == text) {
    request.set_text(std::move(text));
  } else {
    request.set_raw(std::move(text));
  }
}

}  // namespace aft::client
