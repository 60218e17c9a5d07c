#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace aft::server {

// Knows which of the runner's slots are free. It handles only their numbers; model/state owns their
// memory. Thread-compatible.
class SlotPool {
 public:
  // REQUIRES: size >= 1.
  explicit SlotPool(int32_t size) : in_use_(static_cast<size_t>(size), false) {
    free_.reserve(in_use_.size());
    for (int32_t slot = size - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  int32_t size() const { return static_cast<int32_t>(in_use_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return size() - free(); }

  // Hands out the free slot that was released last, whose memory is most likely still in the
  // caches. REQUIRES: free() > 0.
  int32_t Acquire() {
    AFT_CHECK(!free_.empty());
    const int32_t slot = free_.back();
    free_.pop_back();
    in_use_[static_cast<size_t>(slot)] = true;
    return slot;
  }

  // REQUIRES: `slot` came from Acquire and was not released since.
  void Release(int32_t slot) {
    AFT_CHECK(slot >= 0 && slot < size() && in_use_[static_cast<size_t>(slot)]);
    in_use_[static_cast<size_t>(slot)] = false;
    free_.push_back(slot);
  }

 private:
  std::vector<int32_t> free_;
  std::vector<bool> in_use_;
};

}  // namespace aft::server
