#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"

namespace aft {

// The GPU half of LoadModel: makes the runners of LoadOptions::device "cuda:N" (`index` is N), with
// weights in `format`, and reads the states from which texts may begin. Builds with CUDA compile
// gpu_backend.cc; all others compile no_gpu_backend.cc instead, which refuses the device. REQUIRES:
// LoadModel has checked `options`.
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGpuRunner(const LoadOptions& options,
                                                           Number format, int index,
                                                           const CheckpointFile& checkpoint,
                                                           std::vector<InitialState>& states);
absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadGpuEncoder(const LoadOptions& options,
                                                              Number format, int index,
                                                              const CheckpointFile& checkpoint);

}  // namespace aft
