#ifndef AFT_MODEL_CONVERT_AFT_PYTORCH_H_
#define AFT_MODEL_CONVERT_AFT_PYTORCH_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/convert/import.h"

namespace aft {

// A module of the package aft-pytorch (rish-16/aft-pytorch, 9a89696; the AFT notebook has the same
// code), from its state_dict: to_q, to_k, to_v, project, wbias [T, T]. All are bidirectional:
//
//   no wbias          AFTSimple
//   wbias             AFTFull; at most T tokens
//   wbias and window  AFTLocal(s = window): the state_dict does not hold s, and outside of the band
//                     wbias is garbage that the module itself overwrites with 0
//
// The checkpoint's architecture is "mixer". INVALID_ARGUMENT names the tensor.
absl::StatusOr<Import> ImportAftPytorch(const TensorMap& tensors, std::optional<int64_t> window);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_AFT_PYTORCH_H_
