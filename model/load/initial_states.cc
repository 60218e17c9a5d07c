#include "model/load/initial_states.h"

#include <cstring>
#include <memory>
#include <utility>

#include "ATen/ops/isfinite.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/kinds.h"
#include "model/runtime/snapshot.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

// Copies the table of a layer to `sums`.
absl::Status ReadTable(const SafetensorsReader& file, const std::string& path,
                       const std::string& name, const std::vector<int64_t>& shape, char* sums) {
  const auto error = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", name, "': ", what...));
  };
  if (file.header().tensors.count(name) == 0) return error("is missing");
  AFT_ASSIGN_OR_RETURN(const at::Tensor read, file.Read(name));
  if (read.sizes() != at::IntArrayRef(shape) || !read.is_floating_point()) {
    return error("must have floating-point numbers and the shape [", absl::StrJoin(shape, ", "),
                 "]");
  }
  const at::Tensor table = read.to(at::kFloat).contiguous();
  if (!at::isfinite(table).all().item<bool>()) return error("has a value that is not finite");
  std::memcpy(sums, table.const_data_ptr(), table.nbytes());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSnapshot(const std::string& path, const NetworkConfig& config,
                                         absl::Span<const StateSpec> states, uint64_t network) {
  AFT_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> file,
                       SafetensorsReader::Open(path));
  const auto tensors = static_cast<int64_t>(file->header().tensors.size());
  if (tensors != config.n_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must have ", config.n_layers, " tensors, has ", tensors));
  }
  const int64_t width = config.d_model / config.mixer.heads;
  const SlotLayout layout({states.begin(), states.end()});
  std::string snapshot = BeginSnapshot(network, layout.fingerprint(), /*position=*/1,
                                       layout.UsedBytes(/*position=*/1));
  char* part = snapshot.data() + SnapshotHeaderBytes();
  const size_t parts = states.size() / static_cast<size_t>(config.n_layers);  // the mixer is first
  for (size_t i = 0; i < states.size(); ++i) {
    if (i % parts == 0) {
      AFT_RETURN_IF_ERROR(ReadTable(*file, path, InitialStateName(static_cast<int64_t>(i / parts)),
                                    {config.mixer.heads, width, width}, part));
    }
    part += states[i].floats * static_cast<int64_t>(sizeof(float));
  }
  SealSnapshot(&snapshot);
  return snapshot;
}

}  // namespace

absl::StatusOr<std::vector<InitialState>> ReadInitialStates(const std::string& dir,
                                                            const NetworkConfig& config,
                                                            absl::Span<const StateSpec> states,
                                                            uint64_t network) {
  AFT_ASSIGN_OR_RETURN(const auto files, FindStateFiles(dir));
  std::vector<InitialState> read;
  for (const auto& [name, path] : files) {
    AFT_RETURN_IF_ERROR(CheckTakesStates(config, path));
    absl::StatusOr<std::string> snapshot = ReadSnapshot(path, config, states, network);
    if (absl::IsDataLoss(snapshot.status())) {  // LoadModel takes DATA_LOSS for one of the weights
      return absl::InvalidArgumentError(snapshot.status().message());
    }
    AFT_RETURN_IF_ERROR(snapshot.status());
    const uint64_t hash = XxHash64(*snapshot, 0);
    read.push_back({name, *std::move(snapshot), hash});
  }
  return read;
}

}  // namespace aft
