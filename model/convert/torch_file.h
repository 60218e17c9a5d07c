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
// executed (ReadStateDict), and of the tensors' numbers. A tensor is read when it is asked for. The
// archive is not trusted: its directory must fill the file up to its end, and the records that are
// used must be within the file, must not overlap, and must not be compressed, which torch.save
// never does. Zip64 is supported. Checksums are not verified. Thread-safe.
//
// LibTorch's own reader (PyTorchStreamReader) is not used: it unpacks a record before anything can
// ask for its size, so that an archive of 1 MB takes 2 GB, and it accepts records that overlap.
class TorchFile {
 public:
  static bool IsZip(const TensorFile& file) { return file.BeginsWith("PK\3\4"); }

  // Reads the pickle, and checks that the archive has all of the tensors. Errors do not name the
  // file: those of ReadStateDict; INVALID_ARGUMENT (TorchScript, or from a big-endian machine);
  // DATA_LOSS (the archive is damaged or not from torch.save); RESOURCE_EXHAUSTED (the pickle is
  // too large).
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
