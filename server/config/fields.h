#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

// Applies the options of proto/aft/config/v1/field_options.proto to every field of a message and of
// its nested messages.
namespace aft::server {

// Sets absent fields to their defaults.
void FillDefaults(google::protobuf::Message& message);

// Clears every field whose value is the one that FillDefaults sets, in nested messages too. Lists
// keep their elements.
void ClearDefaults(google::protobuf::Message& message);

// Resolves relative paths of files against `folder`; "" is the working directory.
void ResolveFiles(const std::string& folder, google::protobuf::Message& message);

// INVALID_ARGUMENT "PATH: reason" for a field that is out of its range, not one of its values, too
// long or missing. A field that limits another one is reported before that one.
absl::Status CheckFields(const google::protobuf::Message& message);

}  // namespace aft::server
