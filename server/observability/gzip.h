#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace aft::server {

// Whether a client with this header Accept-Encoding accepts gzip (RFC 9110, 12.5.3).
bool AcceptsGzip(absl::string_view accept_encoding);

// The text as a gzip file; nullopt when there is no memory.
std::optional<std::string> Gzip(const std::string& text);

}  // namespace aft::server
