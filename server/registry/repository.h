#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

// Reads the folder of a RepositoryConfig: FOLDER/NAME/VERSION/. These are stateless functions on
// the file system, which may wait for the disk. Errors name the path.
//
// No client reaches a file outside: names come from the wire, and are checked before a path is made
// of them; links are followed, but their targets must be in the folder.
namespace aft::server {

// The names of the subfolders that can be models': as CheckName says, and not hidden.
absl::StatusOr<std::vector<std::string>> ListModelFolders(const std::string& folder);

// The versions of a model that the repository is to serve, the newest first. INVALID_ARGUMENT:
// ListModelFolders could not return this name. NOT_FOUND: no such folder, or no such version in it.
// PERMISSION_DENIED: it is outside of the repository.
absl::StatusOr<std::vector<ModelConfig>> FindVersions(const RepositoryConfig& repository,
                                                      const std::string& name);

// Orders versions: "10" before "9".
struct NewestFirst {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  }
};

// To be called before a version of a repository is loaded. PERMISSION_DENIED: one of its files is
// outside of the repository, or not a regular file. DATA_LOSS: CheckChecksums. RESOURCE_EXHAUSTED:
// there is less memory than its files have bytes.
absl::Status CheckVersionFolder(const std::string& repository, const ModelConfig& model);

// Changes when a file of the folder is replaced or changed; empty: there is no such folder.
std::string FolderStamp(const std::string& path);

}  // namespace aft::server
