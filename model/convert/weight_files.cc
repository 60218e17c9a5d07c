#include "model/convert/weight_files.h"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/tokenizer/json_walk.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

using Json = nlohmann::json;

constexpr char kIndexFileName[] = "model.safetensors.index.json";

struct Index {
  std::map<std::string, std::string> shards;  // tensor -> file
  std::optional<Json> total_size;
};

// Whether this is a plain file name, as libraries choose them, of a file in the index's folder.
bool IsShardName(absl::string_view name) {
  constexpr size_t kMostBytes = 200;
  return absl::EndsWith(name, ".safetensors") && name.size() <= kMostBytes && name.front() != '.' &&
         !absl::StrContains(name, '/') && absl::c_all_of(name, absl::ascii_isgraph);
}

absl::Status TakeIndexValue(const JsonPath& path, const Json& value, Index* index) {
  if (path.size() < 2) {
    const bool known = path.empty() || path[0] == "weight_map" || path[0] == "metadata";
    if (!known || value.is_object()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path.empty() ? "" : path[0] + ": ",
                                                   "must be an object, got ", ShownJson(value)));
  }
  if (path[0] == "metadata" && path[1] == "total_size") {
    if (path.size() > 2 || !value.is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata.total_size: must be a number, got ", ShownJson(value)));
    }
    index->total_size = value;
  }
  if (path[0] != "weight_map") return absl::OkStatus();
  const std::string tensor = absl::StrCat("tensor '", ShownTensorName(path[1]), "': ");
  if (path.size() > 2 || !value.is_string() || !IsShardName(value.get_ref<const std::string&>())) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor, "must be in a .safetensors file of this folder, got ", ShownJson(value)));
  }
  if (!index->shards.emplace(path[1], value.get<std::string>()).second) {
    return absl::InvalidArgumentError(absl::StrCat(tensor, "given more than once"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Index> ReadIndex(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  Index index;
  AFT_RETURN_IF_ERROR(InFile(path, WalkJson(text, [&index](const JsonPath& at, const Json& value) {
                               return TakeIndexValue(at, value, &index);
                             })));
  if (!index.shards.empty()) return index;
  return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map: has no tensors"));
}

absl::Status CheckTotal(const Index& index, int64_t bytes) {
  // Json compares numbers by value, because some versions write 123.0.
  if (!index.total_size.has_value() || *index.total_size == Json(bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("metadata.total_size: says ",
                                          ShownJson(*index.total_size),
                                          " bytes, but the shards hold ", bytes));
}

}  // namespace

WeightFiles::WeightFiles(TensorMap tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    entries_[name] = {SafetensorsDtypeName(tensor.scalar_type()), tensor.sizes().vec(), ""};
  }
}

// Checks that memory holds all tensors.
absl::Status WeightFiles::Start(Progress* progress) {
  int64_t bytes = 0;
  for (const auto& [shard, reader] : readers_) {
    for (const auto& [name, entry] : reader->header().tensors) bytes += entry.end - entry.begin;
  }
  progress_ = progress;
  if (progress_ != nullptr) progress_->Begin(bytes);
  const int64_t available = AvailableMemory();
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(path(), ": ", bytes, " bytes of tensors, but ",
                                                   available, " bytes of memory are available"));
}

absl::StatusOr<WeightFiles> WeightFiles::OpenFile(const std::string& path, Progress* progress) {
  AFT_ASSIGN_OR_RETURN(const Reader reader, SafetensorsReader::Open(path));
  WeightFiles files;
  files.paths_ = {path};
  files.readers_[""] = reader;
  for (const auto& [name, entry] : reader->header().tensors) {
    files.entries_[name] = {entry.dtype, entry.shape, ""};
  }
  AFT_RETURN_IF_ERROR(files.Start(progress));
  return files;
}

absl::StatusOr<WeightFiles> WeightFiles::OpenFolder(const std::string& dir, Progress* progress) {
  const auto in_dir = [&dir](const std::string& name) {
    return (std::filesystem::path(dir) / name).string();
  };
  std::error_code ignored;
  const std::string path = in_dir(kIndexFileName);
  const bool one = std::filesystem::exists(in_dir(kWeightsFileName), ignored);
  if (!std::filesystem::exists(path, ignored)) {
    for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (one || !std::filesystem::exists(in_dir(pickle), ignored)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(in_dir(pickle), ": pickles are not read: make ", kWeightsFileName,
                       " from it with tools/pt_to_safetensors.py"));
    }
    return OpenFile(in_dir(kWeightsFileName), progress);
  }
  if (one) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", kWeightsFileName, " exists too; remove one of the two"));
  }

  AFT_ASSIGN_OR_RETURN(const Index index, ReadIndex(path));
  WeightFiles files;
  files.paths_ = {path};
  int64_t bytes = 0;
  for (const auto& [listed, shard] : index.shards) {
    if (files.readers_.count(shard) > 0) continue;
    const std::string shard_path = in_dir(shard);
    AFT_ASSIGN_OR_RETURN(files.readers_[shard], SafetensorsReader::Open(shard_path));
    files.paths_.push_back(shard_path);
    for (const auto& [name, entry] : files.readers_[shard]->header().tensors) {
      const auto place = index.shards.find(name);
      if (place == index.shards.end() || place->second != shard) {
        return absl::DataLossError(
            absl::StrCat(shard_path, ": tensor '", ShownTensorName(name), "': is in ",
                         place == index.shards.end() ? "no shard" : place->second, " according to ",
                         kIndexFileName));
      }
      files.entries_[name] = {entry.dtype, entry.shape, shard};
      bytes += entry.end - entry.begin;
    }
  }
  for (const auto& [name, shard] : index.shards) {
    if (files.entries_.count(name) > 0) continue;
    return absl::DataLossError(absl::StrCat(in_dir(shard), ": tensor '", ShownTensorName(name),
                                            "': is missing, according to ", kIndexFileName));
  }
  AFT_RETURN_IF_ERROR(InFile(path, CheckTotal(index, bytes)));
  AFT_RETURN_IF_ERROR(files.Start(progress));
  return files;
}

absl::StatusOr<at::Tensor> WeightFiles::Read(const std::string& name) const {
  if (readers_.empty()) return tensors_.at(name);
  AFT_ASSIGN_OR_RETURN(at::Tensor tensor, readers_.at(entries_.at(name).shard)->Read(name));
  if (progress_ != nullptr) progress_->Add(static_cast<int64_t>(tensor.nbytes()));
  return tensor;
}

}  // namespace aft
