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
// A client cannot reach a file outside of the folder. Names that come from clients are checked
// before a path is made of them. Links are followed, but their targets must be in the folder.
namespace aft::server {

// The names of the subfolders that can be names of models (CheckName) and are not hidden. These
// include entries of which the file system cannot tell whether they are folders.
absl::StatusOr<std::vector<std::string>> ListModelFolders(const std::string& folder);

// The versions of a model that the repository should serve, the newest first. INVALID_ARGUMENT:
// ListModelFolders could not return this name. NOT_FOUND: no such folder, or no such version in it.
// A version may still lead out of the repository, or not be readable, which CheckVersionFolder
// finds out.
absl::StatusOr<std::vector<ModelConfig>> FindVersions(const RepositoryConfig& repository,
                                                      const std::string& name);

// Orders versions: "10" before "9".
struct NewestFirst {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  }
};

// Must be called before a version of a repository is loaded. PERMISSION_DENIED: it or one of its
// files is outside of the repository, or a file is not a regular one. DATA_LOSS: as CheckChecksums.
// RESOURCE_EXHAUSTED: its model.safetensors is larger than the available memory, and would be
// loaded into it.
absl::Status CheckVersionFolder(const std::string& repository, const ModelConfig& model);

// Returns a text that changes when a file of the folder is replaced or changed; empty if there is
// no such folder.
std::string FolderStamp(const std::string& path);

}  // namespace aft::server
