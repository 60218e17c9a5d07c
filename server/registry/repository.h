#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

// What stands in the folder of a RepositoryConfig: FOLDER/NAME/VERSION/. Functions of the file
// system, without state; they may wait for the disk. Errors name the path.
//
// Nobody reaches a file outside: names come from the wire, and are checked before a path is made of
// them; links are followed, but what they lead to must be in the folder.
namespace aft::server {

// Names of the folder's folders that can be models': as CheckName says, and not hidden.
absl::StatusOr<std::vector<std::string>> ListModelFolders(const std::string& folder);

// The versions of a model that the repository is to serve, the newest first. INVALID_ARGUMENT: no
// name that ListModelFolders could have. NOT_FOUND: no such folder, or no such version in it.
// PERMISSION_DENIED: it is outside of the repository.
absl::StatusOr<std::vector<ModelConfig>> FindVersions(const RepositoryConfig& repository,
                                                      const std::string& name);

// Orders versions: "10" before "9".
struct NewestFirst {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  }
};

// Before a version of a repository is loaded. PERMISSION_DENIED: one of its files is outside of the
// repository, or none that can be read to an end. DATA_LOSS: its SHA256SUMS does not vouch for
// every file. RESOURCE_EXHAUSTED: there is less memory than its files have bytes.
absl::Status CheckVersionFolder(const std::string& repository, const ModelConfig& model);

// Differs when a file of the folder was replaced or changed; empty: there is no such folder.
std::string FolderStamp(const std::string& path);

}  // namespace aft::server
