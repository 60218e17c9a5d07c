#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

namespace aft::config::v1 {
class ServerConfig;
}

namespace aft::server {

// Reads a text-proto file of aft.config.v1.ServerConfig. Ranges are not checked here
// (ValidateServerConfig), because flags may still change the values.
//
// Errors: NOT_FOUND or PERMISSION_DENIED for a file that cannot be read; INVALID_ARGUMENT
// "FILE:LINE:COLUMN: reason" for a syntax error or an unknown field.
absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path);

// Does the same as LoadServerConfig for text in memory. `file_name` is for messages. Relative paths
// of files are resolved against `base_dir`; "" is the working directory.
absl::StatusOr<ServerConfig> ParseServerConfig(absl::string_view text, absl::string_view file_name,
                                               const std::string& base_dir);

// A model with all defaults. It serves the checkpoint in `dir`, and has the name of that folder.
ModelConfig DefaultModelConfig(const std::string& dir);

// The config as text-proto with every field present. ParseServerConfig reads it back to equal
// values.
std::string FormatEffectiveConfig(const ServerConfig& config);

// The fields of the config that differ from their defaults, in the same format.
std::string FormatChangedConfig(const ServerConfig& config);

// The whole config as a message.
aft::config::v1::ServerConfig MessageOf(ServerConfig config);

}  // namespace aft::server
