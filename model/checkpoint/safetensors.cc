#include "model/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

struct Dtype {
  const char* name;
  at::ScalarType type;
};
constexpr std::array<Dtype, 10> kDtypes = {{{"F64", at::kDouble},
                                            {"F32", at::kFloat},
                                            {"F16", at::kHalf},
                                            {"BF16", at::kBFloat16},
                                            {"I64", at::kLong},
                                            {"I32", at::kInt},
                                            {"I16", at::kShort},
                                            {"I8", at::kChar},
                                            {"U8", at::kByte},
                                            {"BOOL", at::kBool}}};

constexpr int64_t kLengthBytes = 8;

absl::Status ReadAt(int fd, int64_t offset, int64_t bytes, void* out) {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) return absl::DataLossError("the file became shorter while being read");
    next += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> ReadTensor(int fd, int64_t data_start, const TensorEntry& entry) {
  const auto* dtype = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&](const Dtype& d) { return entry.dtype == d.name; });
  if (dtype == kDtypes.end()) return absl::DataLossError("unknown dtype");
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions().dtype(dtype->type));
  } catch (const std::exception&) {  // c10::Error: the allocator has no memory left
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough memory for ", entry.end - entry.begin, " bytes"));
  }
  const int64_t bytes = entry.end - entry.begin;
  AFT_RETURN_IF_ERROR(ReadAt(fd, data_start + entry.begin, bytes, tensor.data_ptr()));
  if (dtype->type == at::kBool) {
    // Any other byte in a C++ bool is undefined behaviour.
    const uint8_t* begin = static_cast<const uint8_t*>(tensor.data_ptr());
    if (std::any_of(begin, begin + bytes, [](uint8_t byte) { return byte > 1; })) {
      return absl::DataLossError("BOOL data has a byte that is neither 0 nor 1");
    }
  }
  return tensor;
}

absl::StatusOr<std::string> FormatHeader(const TensorMap& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string shown = absl::StrCat("tensor '", ShownTensorName(name), "': ");
    if (name == "__metadata__") return absl::InvalidArgumentError(shown + "reserved name");
    if (!tensor.defined()) return absl::InvalidArgumentError(shown + "undefined tensor");
    if (tensor.layout() != at::kStrided) return absl::InvalidArgumentError(shown + "not dense");
    const std::string dtype = SafetensorsDtypeName(tensor.scalar_type());
    if (dtype.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(shown, "dtype ", at::toString(tensor.scalar_type()), " cannot be stored"));
    }
    const int64_t end = offset + static_cast<int64_t>(tensor.nbytes());
    nlohmann::ordered_json& entry = json[name];
    entry["dtype"] = dtype;
    entry["shape"] = tensor.sizes().vec();
    entry["data_offsets"] = {offset, end};
    offset = end;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data aligned, as the format advises
  return text;
}

absl::Status Write(const std::string& path, const TensorMap& tensors,
                   const std::map<std::string, std::string>& metadata, Progress* progress) {
  AFT_ASSIGN_OR_RETURN(const std::string header, FormatHeader(tensors, metadata));
  const uint64_t header_bytes = header.size();
  std::vector<absl::string_view> pieces = {
      {reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)}, header};
  std::vector<at::Tensor> dense;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& data = dense.emplace_back(tensor.detach().to(at::kCPU).contiguous());
    pieces.emplace_back(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  }
  return WriteFileAtomically(path, pieces, 0644, progress);
}

}  // namespace

const char* SafetensorsDtypeName(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  return "";
}

absl::Status SafetensorsReader::ReadHeader() {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, "cannot stat");
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("not a regular file");
  const int64_t file_bytes = info.st_size;
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("truncated: ", file_bytes, " bytes, less than the 8 of the header's length"));
  }
  uint64_t header_bytes = 0;
  AFT_RETURN_IF_ERROR(ReadAt(fd_, 0, kLengthBytes, &header_bytes));
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
  AFT_RETURN_IF_ERROR(ReadAt(fd_, kLengthBytes, static_cast<int64_t>(header_bytes), json.data()));
  AFT_ASSIGN_OR_RETURN(header_, ParseSafetensorsHeader(json, file_bytes - data_start_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  // O_NONBLOCK: opening a pipe must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader(path, fd));
  try {
    AFT_RETURN_IF_ERROR(InFile(path, reader->ReadHeader()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory"));
  }
  return reader;
}

SafetensorsReader::~SafetensorsReader() { close(fd_); }

absl::StatusOr<at::Tensor> SafetensorsReader::Read(const std::string& name) const {
  return InFile(absl::StrCat(path_, ": tensor '", ShownTensorName(name), "'"),
                ReadTensor(fd_, data_start_, header_.tensors.at(name)));
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

absl::Status WriteSafetensors(const std::string& path, const TensorMap& tensors,
                              const std::map<std::string, std::string>& metadata,
                              Progress* progress) {
  try {
    return InFile(path, Write(path, tensors, metadata, progress));
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a tensor name or the metadata is not valid UTF-8"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": not enough memory"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(path, ": ", error.what()));
  }
}

}  // namespace aft
