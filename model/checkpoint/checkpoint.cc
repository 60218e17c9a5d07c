#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "ATen/ops/isfinite.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/atomic_file.h"
#include "base/in_file.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/stored_weights.h"
#include "model/checkpoint/tensor_file.h"
#include "model/config/json_fields.h"

namespace aft {
namespace {

constexpr absl::string_view kStatePrefix = "state-";
constexpr absl::string_view kStateSuffix = ".safetensors";

std::string PathIn(const std::string& dir, const char* name) {
  return (std::filesystem::path(dir) / name).string();
}

}  // namespace

std::string StateFileName(absl::string_view state) {
  return absl::StrCat(kStatePrefix, state, kStateSuffix);
}

std::string InitialStateName(int64_t layer) {
  return absl::StrCat("layers.", layer, ".mixer.initial_state");
}

absl::Status CheckTakesStates(const NetworkConfig& config, absl::string_view path) {
  if (config.mixer.kind != MixerKind::kWkv7) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": only a model of the kind wkv7 takes tuned states"));
  }
  if (config.position != PositionKind::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a model with a table of positions takes no tuned states"));
  }
  return absl::OkStatus();
}

bool IsStateName(absl::string_view name) {
  constexpr size_t kMaxBytes = 64;
  return !name.empty() && name.size() <= kMaxBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

absl::StatusOr<std::map<std::string, std::string>> FindStateFiles(const std::string& dir) {
  std::map<std::string, std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string file = it->path().filename().string();
    absl::string_view name = file;
    if (absl::ConsumePrefix(&name, kStatePrefix) && absl::ConsumeSuffix(&name, kStateSuffix) &&
        IsStateName(name)) {
      found.emplace(name, it->path().string());
    }
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", dir));
  return found;
}

absl::StatusOr<std::vector<at::Tensor>> ReadStateFile(const std::string& path,
                                                      const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(CheckTakesStates(config, path));
  AFT_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> file,
                       SafetensorsReader::Open(path));
  const auto& listed = file->header().tensors;
  const int64_t width = config.d_model / config.mixer.heads;
  const std::vector<int64_t> shape = {config.mixer.heads, width, width};
  std::vector<at::Tensor> tables;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string name = InitialStateName(i);
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", name, "': ", what...));
    };
    const auto entry = listed.find(name);
    if (entry == listed.end()) return error("is missing");
    if (entry->second.shape != shape || !at::isFloatingType(SafetensorsType(entry->second.dtype))) {
      return error("must have floating-point numbers and the shape [", absl::StrJoin(shape, ", "),
                   "]");
    }
    AFT_ASSIGN_OR_RETURN(const at::Tensor read, file->Read(name));
    const at::Tensor& table = tables.emplace_back(read.to(at::kFloat).contiguous());
    if (!at::isfinite(table).all().item<bool>()) return error("has a value that is not finite");
  }
  if (listed.size() == tables.size()) return tables;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": must have ", tables.size(), " tensors, has ", listed.size()));
}

absl::StatusOr<CheckpointFile> OpenCheckpoint(const std::string& dir) {
  const std::string config_path = PathIn(dir, kConfigFileName);
  AFT_ASSIGN_OR_RETURN(const std::string json, ReadRegularFile(config_path, kMaxConfigBytes));
  AFT_ASSIGN_OR_RETURN(NetworkConfig config, InFile(config_path, ParseNetworkConfig(json)));
  const std::string weights_path = PathIn(dir, kWeightsFileName);
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsReader> file,
                       SafetensorsReader::Open(weights_path));
  const SafetensorsHeader& header = file->header();
  AFT_ASSIGN_OR_RETURN(TensorSource tensors, InFile(weights_path, ExpandedTensors(file)));
  const Number format = StoredFormat(config, header);
  CheckpointFile checkpoint{std::move(config), std::move(tensors), header.metadata, format};
  for (const auto& [name, entry] : header.tensors) {
    checkpoint.weight_bytes += entry.end - entry.begin;
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(CheckpointFile file, OpenCheckpoint(dir));
  AFT_ASSIGN_OR_RETURN(TensorMap tensors, file.tensors.ReadAll());
  return Checkpoint{std::move(file.config), std::move(tensors), std::move(file.metadata)};
}

absl::Status WriteCheckpoint(const std::string& dir, const NetworkConfig& config,
                             const DeferredTensors& tensors,
                             const std::map<std::string, std::string>& metadata,
                             Progress* progress) {
  const std::string json = FormatNetworkConfig(config);
  AFT_RETURN_IF_ERROR(ParseNetworkConfig(json).status());
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create folder ", dir));
  }
  AFT_RETURN_IF_ERROR(
      StreamSafetensors(PathIn(dir, kWeightsFileName), tensors, metadata, progress));
  return WriteFileAtomically(PathIn(dir, kConfigFileName), {json});
}

}  // namespace aft
