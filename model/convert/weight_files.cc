#include "model/convert/weight_files.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/json_walk.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/checkpoint/tensor_file.h"
#include "model/convert/torch_file.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

using Json = nlohmann::json;

// A folder of the hub has one of these, and the first one is preferred.
struct Layout {
  const char* file;
  const char* index;
};
constexpr Layout kLayouts[] = {{kWeightsFileName, "model.safetensors.index.json"},
                               {"pytorch_model.bin", "pytorch_model.bin.index.json"}};

struct Index {
  std::map<std::string, std::string> shards;  // tensor -> file
  std::optional<Json> total_size;
};

// Whether this is a plain file name, as libraries choose them, of a file in the index's folder.
bool IsShardName(absl::string_view name) {
  constexpr size_t kMostBytes = 200;
  return (absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".bin")) &&
         name.size() <= kMostBytes && name.front() != '.' && !absl::StrContains(name, '/') &&
         absl::c_all_of(name, absl::ascii_isgraph);
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
        tensor, "must be in a .safetensors or .bin file of this folder, got ", ShownJson(value)));
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

struct OneFile {
  std::map<std::string, WeightFiles::Entry> entries;
  std::function<absl::StatusOr<at::Tensor>(const std::string&)> read;
};

int64_t BytesOf(const WeightFiles::Entry& entry) {
  return absl::c_accumulate(entry.shape, SafetensorsDtypeBytes(entry.dtype), std::multiplies<>());
}

absl::StatusOr<OneFile> OpenOne(const std::string& path, absl::Span<const std::string> keys) {
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const TensorFile> file, TensorFile::Open(path));
  OneFile one;
  if (TorchFile::IsZip(*file)) {
    AFT_ASSIGN_OR_RETURN(TorchFile opened, InFile(path, TorchFile::Open(file, keys)));
    const auto reader = std::make_shared<const TorchFile>(std::move(opened));
    one.read = [reader](const std::string& name) { return reader->Read(name); };
    for (const auto& [name, tensor] : reader->tensors()) {
      one.entries[name] = {tensor.dtype, tensor.shape, "",
                           tensor.span * SafetensorsDtypeBytes(tensor.dtype)};
      // With a stride of 0 a tensor has more numbers than its span.
      WeightFiles::Entry& entry = one.entries[name];
      entry.read_bytes = std::max(entry.read_bytes, BytesOf(entry));
    }
    return one;
  }
  if (file->BeginsWith("\x80\x02\x8A\x0A")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": torch before 1.6 wrote it: load it and save it again with a newer torch"));
  }
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsReader> reader,
                       SafetensorsReader::Open(path));
  if (!keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": only a file of torch.save has keys (--key)"));
  }
  one.read = [reader](const std::string& name) { return reader->Read(name); };
  for (const auto& [name, entry] : reader->header().tensors) {
    one.entries[name] = {entry.dtype, entry.shape, "", entry.end - entry.begin};
  }
  return one;
}

}  // namespace

WeightFiles::WeightFiles(TensorMap tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    entries_[name] = {SafetensorsDtypeName(tensor.scalar_type()), tensor.sizes().vec(), "", 0};
  }
}

absl::Status WeightFiles::CheckMemory() const {
  const int64_t available = AvailableMemory();
  for (const auto& [name, entry] : entries_) {
    if (entry.read_bytes <= available) continue;
    return absl::ResourceExhaustedError(absl::StrCat(path(), ": tensor '", ShownTensorName(name),
                                                     "': has ", entry.read_bytes, " bytes, but ",
                                                     available, " bytes of memory are available"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightFiles> WeightFiles::OpenFile(const std::string& path,
                                                  absl::Span<const std::string> keys) {
  AFT_ASSIGN_OR_RETURN(OneFile one, OpenOne(path, keys));
  WeightFiles files;
  files.paths_ = {path};
  files.readers_[""] = std::move(one.read);
  files.entries_ = std::move(one.entries);
  AFT_RETURN_IF_ERROR(files.CheckMemory());
  return files;
}

absl::StatusOr<WeightFiles> WeightFiles::OpenFolder(const std::string& dir,
                                                    absl::Span<const std::string> keys) {
  const auto exists = [&dir](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(dir) / name, ignored);
  };
  const std::string prefix = (std::filesystem::path(dir) / "").string();
  for (const Layout& layout : kLayouts) {
    if (!exists(layout.index)) {
      if (exists(layout.file)) return OpenFile(prefix + layout.file, keys);
      continue;
    }
    if (exists(layout.file)) {
      return absl::InvalidArgumentError(absl::StrCat(prefix, layout.index, ": ", layout.file,
                                                     " exists too; remove one of the two"));
    }
    AFT_ASSIGN_OR_RETURN(WeightFiles files, OpenShards(prefix, layout.index, keys));
    AFT_RETURN_IF_ERROR(files.CheckMemory());
    return files;
  }
  return OpenFile(prefix + kWeightsFileName);  // the error that it is missing
}

absl::StatusOr<WeightFiles> WeightFiles::OpenShards(const std::string& prefix,
                                                    const std::string& index_name,
                                                    absl::Span<const std::string> keys) {
  AFT_ASSIGN_OR_RETURN(const Index index, ReadIndex(prefix + index_name));
  WeightFiles files;
  files.paths_ = {prefix + index_name};
  int64_t bytes = 0;
  for (const auto& [listed, shard] : index.shards) {
    if (files.readers_.count(shard) > 0) continue;
    const std::string& path = files.paths_.emplace_back(prefix + shard);
    AFT_ASSIGN_OR_RETURN(OneFile one, OpenOne(path, keys));
    files.readers_[shard] = std::move(one.read);
    for (auto& [name, entry] : one.entries) {
      const auto place = index.shards.find(name);
      if (place == index.shards.end() || place->second != shard) {
        return absl::DataLossError(
            absl::StrCat(path, ": tensor '", ShownTensorName(name), "': is in ",
                         place == index.shards.end() ? "no shard" : place->second, " according to ",
                         index_name));
      }
      entry.shard = shard;
    }
    for (const auto& [name, entry] : one.entries) bytes += BytesOf(entry);
    files.entries_.merge(one.entries);
  }
  for (const auto& [name, shard] : index.shards) {
    if (files.entries_.count(name) > 0) continue;
    return absl::DataLossError(absl::StrCat(prefix, shard, ": tensor '", ShownTensorName(name),
                                            "': is missing, according to ", index_name));
  }
  // The total of .bin files counts tensors that share their numbers once.
  if (index_name == kLayouts[0].index) {
    AFT_RETURN_IF_ERROR(InFile(files.path(), CheckTotal(index, bytes)));
  }
  return files;
}

absl::StatusOr<at::Tensor> WeightFiles::Read(const std::string& name) const {
  if (readers_.empty()) return tensors_.at(name);
  return readers_.at(entries_.at(name).shard)(name);
}

}  // namespace aft
