#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// A block of floats, 64-byte aligned. Large blocks use huge pages if the kernel provides them.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // The block is zeroed, and backed by memory from here on, so that no page fault occurs later,
  // during a request. RESOURCE_EXHAUSTED names `what` and its size.
  static absl::StatusOr<AlignedBuffer> Create(int64_t floats, absl::string_view what);

  // The content is undefined, and memory is assigned page by page at the first touch. This is for
  // blocks that may never be used in full. The caller checks that memory for all of it is available
  // (base/memory.h).
  static absl::StatusOr<AlignedBuffer> Reserve(int64_t floats, absl::string_view what);

  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  int64_t floats() const { return floats_; }
  int64_t bytes() const { return floats_ * static_cast<int64_t>(sizeof(float)); }

 private:
  struct Free {
    void operator()(float* p) const;
  };

  std::unique_ptr<float[], Free> data_;
  int64_t floats_ = 0;
};

// `floats` rounded up to whole cache lines of 64 bytes.
constexpr int64_t RoundUpToLine(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace aft
