#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"

namespace aft {

// The GPU half of LoadModel: the runners of LoadOptions::device "cuda:N" (`index` is N), weights in
// `format`. Made by gpu_backend.cc in builds with CUDA; no_gpu_backend.cc is in its place in the
// others and refuses. REQUIRES: options that LoadModel has checked.
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGpuRunner(const LoadOptions& options,
                                                           Number format, int index,
                                                           const CheckpointFile& checkpoint);
absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadGpuEncoder(const LoadOptions& options,
                                                              Number format, int index,
                                                              const CheckpointFile& checkpoint);

}  // namespace aft
