#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

// What the options of proto/aft/config/v1/field_options.proto say of every field of a message and
// of those inside it.
namespace aft::server {

// Gives absent fields their defaults.
void FillDefaults(google::protobuf::Message& message);

// Clears every field, in nested messages too, that has the value which FillDefaults gives it. A list
// keeps its elements.
void ClearDefaults(google::protobuf::Message& message);

// Takes relative files from `folder`, which may be empty for the working directory.
void ResolveFiles(const std::string& folder, google::protobuf::Message& message);

// INVALID_ARGUMENT "PATH: reason" for a field that is out of its range, none of its values, too
// long or missing. A field that bounds another one is named before that one.
absl::Status CheckFields(const google::protobuf::Message& message);

}  // namespace aft::server
