#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace aft::server {

// Fills `message` from protobuf's text format. INVALID_ARGUMENT "FILE:LINE:COLUMN: what" for syntax
// errors and unknown fields.
absl::Status ParseTextProto(absl::string_view text, absl::string_view file_name,
                            google::protobuf::Message& message);

// More than any config, clients_file, key or password needs.
inline constexpr int64_t kMaxConfigFileBytes = int64_t{16} << 20;

// Reads a config file. NOT_FOUND and similar errors name the file. RESOURCE_EXHAUSTED if it has
// more than `max_bytes`; the rest is not read.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path,
                                           int64_t max_bytes = kMaxConfigFileBytes);

}  // namespace aft::server
