#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace aft::client {

// One line in protobuf's JSON mapping, with the fields' names as in the proto file and fields that
// are zero too. Integers of 64 bits are strings there, and enum values their names.
std::string JsonLine(const google::protobuf::Message& message);

// {"error":{"code":"UNAVAILABLE","message":...}} and what else is known, likewise.
std::string JsonErrorLine(const absl::Status& status);

}  // namespace aft::client
