#include "model/checkpoint/safetensors.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/check.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

constexpr int64_t kLengthBytes = 8;

absl::StatusOr<std::string> FormatHeader(const DeferredTensors& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string shown = absl::StrCat("tensor '", ShownTensorName(name), "': ");
    if (name == "__metadata__") return absl::InvalidArgumentError(shown + "reserved name");
    const std::string dtype = SafetensorsDtypeName(tensor.type);
    if (dtype.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(shown, "dtype ", at::toString(tensor.type), " cannot be stored"));
    }
    const int64_t end = offset + tensor.bytes();
    nlohmann::ordered_json& entry = json[name];
    entry["dtype"] = dtype;
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, end};
    offset = end;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data aligned, as the format advises
  return text;
}

absl::Status Write(const std::string& path, const DeferredTensors& tensors,
                   const std::map<std::string, std::string>& metadata, Progress* progress) {
  AFT_ASSIGN_OR_RETURN(const std::string header, InFile(path, FormatHeader(tensors, metadata)));
  const uint64_t header_bytes = header.size();
  const auto write = [&](AppendPiece append) {
    AFT_RETURN_IF_ERROR(
        append({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)}));
    AFT_RETURN_IF_ERROR(append(header));
    for (const auto& [name, deferred] : tensors) {
      AFT_ASSIGN_OR_RETURN(at::Tensor tensor, deferred.make());
      if (tensor.layout() != at::kStrided) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": tensor '", ShownTensorName(name), "': not dense"));
      }
      AFT_CHECK(tensor.scalar_type() == deferred.type && tensor.sizes().vec() == deferred.shape);
      tensor = tensor.detach().to(at::kCPU).contiguous();
      AFT_RETURN_IF_ERROR(
          append({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}));
    }
    return absl::OkStatus();
  };
  return WriteFileAtomically(path, write, 0644, progress);
}

}  // namespace

DeferredTensor::DeferredTensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  type = tensor.scalar_type();
  shape = tensor.sizes().vec();
  make = [tensor] { return tensor; };
}

int64_t DeferredTensor::bytes() const {
  return absl::c_accumulate(shape, static_cast<int64_t>(c10::elementSize(type)),
                            std::multiplies<>());
}

absl::Status SafetensorsReader::ReadHeader() {
  const int64_t file_bytes = file_->bytes();
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("truncated: ", file_bytes, " bytes, less than the 8 of the header's length"));
  }
  // A clone without Git LFS has such a text in the place of each large file.
  if (file_->BeginsWith("version https://git-lfs")) {
    return absl::DataLossError(
        "a pointer of Git LFS instead of the file: fetch the file (git lfs pull)");
  }
  uint64_t header_bytes = 0;
  AFT_RETURN_IF_ERROR(file_->Read(0, kLengthBytes, &header_bytes));
  if (header_bytes > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return absl::DataLossError(absl::StrCat("header length ", header_bytes,
                                            " is above the limit of ", kMaxSafetensorsHeaderBytes,
                                            " bytes: not a safetensors file?"));
  }
  data_start_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_start_ > file_bytes) {
    return absl::DataLossError(absl::StrCat("truncated: ", file_bytes,
                                            " bytes, but the header alone ends at ", data_start_));
  }
  std::string json(header_bytes, '\0');
  AFT_RETURN_IF_ERROR(file_->Read(kLengthBytes, static_cast<int64_t>(header_bytes), json.data()));
  AFT_ASSIGN_OR_RETURN(header_, ParseSafetensorsHeader(json, file_bytes - data_start_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader);
  AFT_ASSIGN_OR_RETURN(reader->file_, TensorFile::Open(path));
  try {
    AFT_RETURN_IF_ERROR(InFile(path, reader->ReadHeader()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory"));
  }
  return reader;
}

absl::StatusOr<at::Tensor> SafetensorsReader::Read(const std::string& name) const {
  const TensorEntry& entry = header_.tensors.at(name);
  return InFile(
      absl::StrCat(file_->path(), ": tensor '", ShownTensorName(name), "'"),
      file_->ReadTensor(data_start_ + entry.begin, SafetensorsType(entry.dtype), entry.shape));
}

absl::StatusOr<at::Tensor> SafetensorsReader::ReadPart(const std::string& name, int64_t first,
                                                       int64_t count) const {
  const TensorEntry& entry = header_.tensors.at(name);
  const int64_t offset = data_start_ + entry.begin + first * SafetensorsDtypeBytes(entry.dtype);
  return InFile(absl::StrCat(file_->path(), ": tensor '", ShownTensorName(name), "'"),
                file_->ReadTensor(offset, SafetensorsType(entry.dtype), {count}));
}

absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                       SafetensorsReader::Open(path));
  SafetensorsFile file;
  for (const auto& [name, entry] : reader->header().tensors) {
    AFT_ASSIGN_OR_RETURN(file.tensors[name], reader->Read(name));
  }
  file.metadata = reader->header().metadata;
  return file;
}

absl::Status StreamSafetensors(const std::string& path, const DeferredTensors& tensors,
                               const std::map<std::string, std::string>& metadata,
                               Progress* progress) {
  try {
    return Write(path, tensors, metadata, progress);
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a tensor name or the metadata is not valid UTF-8"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(path, ": ", error.what()));
  }
}

absl::Status WriteSafetensors(const std::string& path, const TensorMap& tensors,
                              const std::map<std::string, std::string>& metadata) {
  return StreamSafetensors(path, DeferredTensors(tensors.begin(), tensors.end()), metadata);
}

}  // namespace aft
