#include "server/registry/repository.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/registry/checksums.h"

namespace aft::server {
namespace {

namespace fs = std::filesystem;

// The file with the weights. Its folder may also have files that are not loaded.
constexpr char kWeightsName[] = "model.safetensors";

// The version that a folder's name stands for; 0: none.
int64_t VersionOf(const std::string& name) {
  const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
  int64_t version = 0;
  if (!digits || name.front() == '0' || !absl::SimpleAtoi(name, &version)) return 0;
  return version;
}

absl::StatusOr<std::vector<fs::directory_entry>> Entries(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the folder ", folder.string(), ": ", error.message()));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Whether the entry is a folder. The answer is also true when the file system cannot tell, because
// a model or version that is served must not seem to be gone. Reading the folder gives the error.
bool MayBeFolder(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.is_directory(error)) return true;
  return error && error != std::errc::no_such_file_or_directory &&
         error != std::errc::not_a_directory && error != std::errc::too_many_symbolic_link_levels;
}

// Checks that `path` is in `folder` when all links of both are followed.
absl::Status CheckInside(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  const fs::path target = error ? fs::path() : fs::canonical(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("cannot follow ", path.string(), ": ", error.message()));
  }
  const auto [in_root, in_target] =
      std::mismatch(root.begin(), root.end(), target.begin(), target.end());
  if (in_root == root.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path.string(), ": leads out of the repository ", root.string()));
}

// Checks that a folder of that name can be a model's.
absl::Status CheckModelName(const std::string& name) {
  AFT_RETURN_IF_ERROR(CheckName("model_name", name));
  if (!absl::StartsWith(name, ".")) return absl::OkStatus();
  return BadField("model_name", absl::StrCat("hidden folders hold no models, got \"", name, "\""));
}

bool IsWanted(const RepositoryConfig& repository, int64_t version) {
  const auto& wanted = repository.versions;
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), version) != wanted.end();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListModelFolders(const std::string& folder) {
  AFT_ASSIGN_OR_RETURN(const auto entries, Entries(folder));
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries) {
    std::string name = entry.path().filename().string();
    if (MayBeFolder(entry) && CheckModelName(name).ok()) names.push_back(std::move(name));
  }
  return names;
}

absl::StatusOr<std::vector<ModelConfig>> FindVersions(const RepositoryConfig& repository,
                                                      const std::string& name) {
  AFT_RETURN_IF_ERROR(CheckModelName(name));
  const fs::path folder = fs::path(repository.folder) / name;
  AFT_ASSIGN_OR_RETURN(const auto entries, Entries(folder));
  std::vector<ModelConfig> found;
  for (const fs::directory_entry& entry : entries) {
    const std::string version = entry.path().filename().string();
    const int64_t number = VersionOf(version);
    if (number == 0 || !MayBeFolder(entry) || !IsWanted(repository, number)) continue;
    ModelConfig& model = found.emplace_back(repository.settings);
    model.name = name;
    model.version = version;
    model.checkpoint_dir = entry.path().string();
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(folder.string(), ": has no folder of a version",
                                            repository.versions.empty()
                                                ? ", such as 1, with a checkpoint"
                                                : " that is one of repository.versions"));
  }
  std::sort(found.begin(), found.end(), [](const ModelConfig& a, const ModelConfig& b) {
    return NewestFirst()(a.version, b.version);
  });
  const auto most = static_cast<size_t>(repository.latest_versions);
  if (repository.versions.empty() && most != 0 && found.size() > most) found.resize(most);
  return found;
}

absl::Status CheckVersionFolder(const std::string& repository, const ModelConfig& model) {
  AFT_RETURN_IF_ERROR(CheckInside(repository, model.checkpoint_dir));
  AFT_ASSIGN_OR_RETURN(const auto entries, Entries(model.checkpoint_dir));
  std::vector<std::string> files;
  bool has_checksums = false;
  uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : entries) {
    std::error_code error;
    AFT_RETURN_IF_ERROR(CheckInside(repository, entry.path()));
    if (entry.is_directory(error)) continue;
    if (!entry.is_regular_file(error)) {
      return absl::PermissionDeniedError(
          absl::StrCat(entry.path().string(), ": is neither a file nor a folder"));
    }
    const std::string name = entry.path().filename().string();
    has_checksums |= name == kChecksumsName;
    if (name != kChecksumsName) files.push_back(name);
    if (name == kWeightsName) bytes = entry.file_size(error);
  }
  // This saves the time to hash the files. Other formats may take less, and a GPU has memory of its
  // own. The loader checks the memory that it will use.
  const int64_t available = AvailableMemory();
  if (model.device == "cpu" && model.weight_format == "stored" &&
      bytes > static_cast<uintmax_t>(available)) {
    return absl::ResourceExhaustedError(absl::StrCat("not enough memory: ", model.checkpoint_dir,
                                                     "/", kWeightsName, " has ", bytes,
                                                     " bytes, and ", available, " are available"));
  }
  return has_checksums ? CheckChecksums(model.checkpoint_dir, files) : absl::OkStatus();
}

std::string FolderStamp(const std::string& path) {
  const auto entries = Entries(path);
  if (!entries.ok()) return "";
  std::string stamp = "/";
  for (const fs::directory_entry& entry : *entries) {
    struct stat info = {};
    if (stat(entry.path().c_str(), &info) != 0) continue;
    absl::StrAppend(&stamp, entry.path().filename().string(), "/", info.st_dev, ":", info.st_ino,
                    ":", info.st_size, ":", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, "/");
  }
  return stamp;
}

}  // namespace aft::server
