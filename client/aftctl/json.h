#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace aft::client {

// One line in protobuf's JSON mapping. Fields have their names in the proto file, and fields that
// are zero are included. 64-bit integers are strings, and enum values are names.
std::string JsonLine(const google::protobuf::Message& message);

// An error in the same form: {"error":{"code":"UNAVAILABLE","message":...}} and all known details.
std::string JsonErrorLine(const absl::Status& status);

}  // namespace aft::client
