#include "model/convert/torch_file.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/convert/stored_zip.h"

namespace aft {
namespace {

constexpr char kPickleName[] = "data.pkl";
constexpr int64_t kMostPickleBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<TorchFile> TorchFile::Open(std::shared_ptr<const TensorFile> file,
                                          absl::Span<const std::string> keys) {
  AFT_ASSIGN_OR_RETURN(const StoredZip zip, StoredZip::Open(file));
  if (!zip.Only("constants.pkl").empty()) {
    return absl::InvalidArgumentError(
        "it is a TorchScript program: save its state_dict() with torch.save");
  }
  const std::string pickle_name = zip.Only(kPickleName);
  if (pickle_name.empty()) {
    return absl::DataLossError(absl::StrCat("it must have exactly one ", kPickleName));
  }
  const std::string root = pickle_name.substr(0, pickle_name.size() - (sizeof(kPickleName) - 1));
  if (const std::string order = root + "byteorder"; zip.Has(order)) {
    AFT_ASSIGN_OR_RETURN(const std::string value, zip.Read(order, 16));
    if (value != "little") {
      return absl::InvalidArgumentError("it was saved on a big-endian machine");
    }
  }
  AFT_ASSIGN_OR_RETURN(const std::string pickle, zip.Read(pickle_name, kMostPickleBytes));
  TorchFile result;
  result.file_ = std::move(file);
  AFT_ASSIGN_OR_RETURN(result.tensors_, InFile(pickle_name, ReadStateDict(pickle, keys)));
  for (const auto& [name, tensor] : result.tensors_) {
    const std::string shown = absl::StrCat("tensor '", ShownTensorName(name), "'");
    AFT_ASSIGN_OR_RETURN(const StoredZip::Place place,
                         InFile(shown, zip.Find(absl::StrCat(root, "data/", tensor.storage))));
    const int64_t size = SafetensorsDtypeBytes(tensor.dtype);
    if (place.bytes % size != 0 || place.bytes / size != tensor.storage_numbers) {
      return absl::DataLossError(absl::StrCat(shown, ": its storage has ", place.bytes,
                                              " bytes, expected ", tensor.storage_numbers,
                                              " numbers of ", size));
    }
    result.storages_[tensor.storage] = place.offset;
  }
  return result;
}

absl::StatusOr<at::Tensor> TorchFile::Read(const std::string& name) const {
  const PickledTensor& tensor = tensors_.at(name);
  const int64_t offset =
      storages_.at(tensor.storage) + tensor.offset * SafetensorsDtypeBytes(tensor.dtype);
  AFT_ASSIGN_OR_RETURN(
      const at::Tensor numbers,
      InFile(absl::StrCat(file_->path(), ": tensor '", ShownTensorName(name), "'"),
             file_->ReadTensor(offset, SafetensorsType(tensor.dtype), {tensor.span})));
  return numbers.as_strided(tensor.shape, tensor.strides).contiguous();
}

}  // namespace aft
