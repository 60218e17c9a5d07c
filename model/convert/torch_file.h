#pragma once

#include <map>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint/tensor_file.h"
#include "model/convert/pickle.h"

namespace aft {

// A file of torch.save (.pt, .pth, .bin) with a state_dict: a zip archive of a pickle, which is not
// executed (ReadStateDict), and of the tensors' numbers. A tensor is read when it is asked for.
// Thread-safe.
class TorchFile {
 public:
  // Reads the pickle, and checks that the archive has all of the tensors. Errors name neither the
  // file: those of ReadStateDict; DATA_LOSS (the archive is damaged or not from torch.save);
  // RESOURCE_EXHAUSTED (the pickle is too large).
  static absl::StatusOr<TorchFile> Open(std::shared_ptr<const TensorFile> file,
                                        absl::Span<const std::string> keys);

  const std::map<std::string, PickledTensor>& tensors() const { return tensors_; }

  // Reads a tensor, contiguous. REQUIRES: tensors() has `name`. Errors are those of
  // TensorFile::ReadTensor, and name file and tensor.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;

 private:
  std::shared_ptr<const TensorFile> file_;
  std::map<std::string, PickledTensor> tensors_;
  std::map<std::string, int64_t> storages_;  // offsets in the file
};

}  // namespace aft
