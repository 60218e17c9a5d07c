#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// A block of floats, 64-byte aligned; large blocks sit on huge pages where the kernel gives them.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // Zeroed, and backed by memory from here on: nothing faults in later, in the middle of a request.
  // RESOURCE_EXHAUSTED names `what` and its size.
  static absl::StatusOr<AlignedBuffer> Create(int64_t floats, absl::string_view what);

  // Holds anything, and is backed page by page at the first touch: for blocks of which most may
  // never be used. The caller checks that all of it could be there (base/memory.h).
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
