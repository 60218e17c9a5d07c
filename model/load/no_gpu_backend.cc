#include "absl/strings/str_cat.h"
#include "model/load/backend.h"

namespace aft {
namespace {

absl::Status NoCuda(const LoadOptions& options) {
  return absl::InvalidArgumentError(
      absl::StrCat("device: \"", options.device,
                   "\", but this program was built without CUDA (AFT_CUDA=ON, preset \"cuda\")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGpuRunner(const LoadOptions& options,
                                                           Number /*format*/, int /*index*/,
                                                           const CheckpointFile& /*checkpoint*/,
                                                           std::vector<InitialState>& /*states*/) {
  return NoCuda(options);
}

absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadGpuEncoder(
    const LoadOptions& options, Number /*format*/, int /*index*/,
    const CheckpointFile& /*checkpoint*/) {
  return NoCuda(options);
}

}  // namespace aft
