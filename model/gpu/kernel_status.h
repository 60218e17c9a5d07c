#ifndef AFT_MODEL_GPU_KERNEL_STATUS_H_
#define AFT_MODEL_GPU_KERNEL_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aft {

// What a function below model/kernels/cuda returned, as a status: INTERNAL names the operator and
// the error's number (cudaError_t; no CUDA header is needed for that).
inline absl::Status KernelStatus(int error, absl::string_view name) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name, ": CUDA error ", error));
}

}  // namespace aft

#endif  // AFT_MODEL_GPU_KERNEL_STATUS_H_
