#pragma once

#include <cstdint>
#include <vector>

namespace aft {

// Records the matrix products that LibTorch computes on this thread while the object exists. A
// thread may have only one such object at a time.
class ProductLog {
 public:
  ProductLog();
  ~ProductLog();
  ProductLog(const ProductLog&) = delete;
  ProductLog& operator=(const ProductLog&) = delete;

  // The number of rows of the left matrix of each product, in order.
  const std::vector<int64_t>& rows() const;

 private:
  uint64_t callback_;
};

}  // namespace aft
