#include "model/load/initial_states.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ATen/core/Tensor.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/runtime/snapshot.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

absl::StatusOr<std::string> ReadSnapshot(const std::string& path, const NetworkConfig& config,
                                         absl::Span<const StateSpec> states, uint64_t network) {
  AFT_ASSIGN_OR_RETURN(const std::vector<at::Tensor> tables, ReadStateFile(path, config));
  const SlotLayout layout({states.begin(), states.end()});
  std::string snapshot = BeginSnapshot(network, layout.fingerprint(), /*position=*/1,
                                       layout.UsedBytes(/*position=*/1));
  char* part = snapshot.data() + SnapshotHeaderBytes();
  const size_t parts = states.size() / static_cast<size_t>(config.n_layers);  // the mixer is first
  for (size_t i = 0; i < states.size(); ++i) {
    const at::Tensor& table = tables[i / parts];
    if (i % parts == 0) std::memcpy(part, table.const_data_ptr(), table.nbytes());
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
