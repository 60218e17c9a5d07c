#include "model/state/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Create(int64_t floats, absl::string_view what) {
  AFT_ASSIGN_OR_RETURN(AlignedBuffer buffer, Reserve(floats, what));
  std::memset(buffer.data(), 0, static_cast<size_t>(buffer.bytes()));
  return buffer;
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::Reserve(int64_t floats, absl::string_view what) {
  constexpr int64_t kMaxFloats = std::numeric_limits<int64_t>::max() / 8;
  if (floats < 0 || floats > kMaxFloats) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": size overflows"));
  }
  size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  AlignedBuffer buffer;
  buffer.data_.reset(static_cast<float*>(std::aligned_alloc(alignment, bytes)));
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": no memory for ", bytes >> 20, " MiB"));
  }
  // This must precede the first touch. Without huge pages, reading weights in order stalls at every
  // 4 kB border.
  if (alignment == kHugePage) madvise(buffer.data_.get(), bytes, MADV_HUGEPAGE);
  buffer.floats_ = floats;
  return buffer;
}

void AlignedBuffer::Free::operator()(float* p) const { std::free(p); }

}  // namespace aft
