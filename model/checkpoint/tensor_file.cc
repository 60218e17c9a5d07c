#include "model/checkpoint/tensor_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <exception>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/in_file.h"
#include "base/status_macros.h"

namespace aft {
namespace {

static_assert(std::endian::native == std::endian::little, "the tensors are little-endian");

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

}  // namespace

const char* SafetensorsDtypeName(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  return "";
}

at::ScalarType SafetensorsType(const std::string& dtype) {
  const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&dtype](const Dtype& d) { return dtype == d.name; });
  AFT_CHECK(known != kDtypes.end());
  return known->type;
}

absl::StatusOr<std::shared_ptr<const TensorFile>> TensorFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::shared_ptr<TensorFile> file(new TensorFile(path, fd));
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(info.st_mode)) return InFile(path, absl::DataLossError("not a regular file"));
  file->bytes_ = info.st_size;
  return file;
}

TensorFile::~TensorFile() { close(fd_); }

bool TensorFile::BeginsWith(absl::string_view bytes) const {
  std::string begin(bytes.size(), '\0');
  return Read(0, static_cast<int64_t>(begin.size()), begin.data()).ok() && begin == bytes;
}

absl::Status TensorFile::Read(int64_t offset, int64_t bytes, void* out) const {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) return absl::DataLossError("the file became shorter while being read");
    next += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TensorFile::ReadTensor(int64_t offset, at::ScalarType type,
                                                  const std::vector<int64_t>& shape) const {
  at::Tensor tensor;
  try {
    tensor = at::empty(shape, at::TensorOptions().dtype(type));
  } catch (const std::exception&) {  // c10::Error: the allocator has no memory left
    return absl::ResourceExhaustedError("not enough memory for the tensor");
  }
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  AFT_RETURN_IF_ERROR(Read(offset, bytes, tensor.data_ptr()));
  if (type == at::kBool) {
    // Any other byte in a C++ bool is undefined behaviour.
    const uint8_t* begin = static_cast<const uint8_t*>(tensor.data_ptr());
    if (std::any_of(begin, begin + bytes, [](uint8_t byte) { return byte > 1; })) {
      return absl::DataLossError("BOOL data has a byte that is neither 0 nor 1");
    }
  }
  return tensor;
}

}  // namespace aft
