#ifndef AFT_MODEL_CONVERT_SOURCE_H_
#define AFT_MODEL_CONVERT_SOURCE_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"

namespace aft {

// The tensors that an import starts from. Each is taken once, by name and shape; what nobody took
// in the end is an error, so that no weight is lost in silence. Errors: INVALID_ARGUMENT naming the
// tensor. Thread-compatible.
class Source {
 public:
  // Any size, in an expected shape.
  static constexpr int64_t kAny = -1;

  explicit Source(TensorMap tensors) : tensors_(std::move(tensors)) {}

  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }

  // Whether some tensor's name starts so.
  bool HasPrefix(const std::string& prefix) const;

  // The tensor as contiguous fp32, from any floating-point type; every value is finite.
  absl::StatusOr<at::Tensor> Take(const std::string& name, const std::vector<int64_t>& shape);

  // The tensor as it is; its type must be bool.
  absl::StatusOr<at::Tensor> TakeMask(const std::string& name, const std::vector<int64_t>& shape);

  // The source's own tensor, which the checkpoint does not need.
  void Ignore(const std::string& name) { taken_.insert(name); }

  // Names every tensor that was neither taken nor ignored.
  absl::Status Finish() const;

 private:
  absl::StatusOr<at::Tensor> Find(const std::string& name, const std::vector<int64_t>& shape);

  const TensorMap tensors_;
  std::set<std::string> taken_;
};

// Takes from.weight [out, in] and from.bias [out] and adds them to `tensors` under the name `to`.
absl::Status CopyLinear(Source& source, const std::string& from, const std::string& to, int64_t out,
                        int64_t in, TensorMap* tensors);
// The same for a layer norm's weight and bias [d].
absl::Status CopyNorm(Source& source, const std::string& from, const std::string& to, int64_t d,
                      TensorMap* tensors);

// "tensor 'name': problem".
absl::Status TensorError(const std::string& name, const std::string& problem);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_SOURCE_H_
