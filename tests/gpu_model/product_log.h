#pragma once

#include <cstdint>
#include <vector>

namespace aft {

// The matrix products that LibTorch computes on this thread while the object lives. One at a time.
class ProductLog {
 public:
  ProductLog();
  ~ProductLog();
  ProductLog(const ProductLog&) = delete;
  ProductLog& operator=(const ProductLog&) = delete;

  // Rows of the left matrix of each, in order.
  const std::vector<int64_t>& rows() const;

 private:
  uint64_t callback_;
};

}  // namespace aft
