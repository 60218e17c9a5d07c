#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace aft::server {

// Fills `message` from protobuf's text format. INVALID_ARGUMENT "FILE:LINE:COLUMN: what" for syntax
// errors and unknown fields.
absl::Status ParseTextProto(absl::string_view text, absl::string_view file_name,
                            google::protobuf::Message& message);

// The bytes of a config file. NOT_FOUND and the like name it.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

}  // namespace aft::server
