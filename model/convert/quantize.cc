#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_weights.h"
#include "model/convert/import.h"
#include "model/network/check_tensors.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

// The bytes of a file with a tuned state that the server would load.
absl::StatusOr<std::string> StateBytes(const std::string& path, const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(ReadStateFile(path, config).status());
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  return bytes;
}

}  // namespace

absl::StatusOr<Import> Quantized(const std::string& dir, Number format, Progress* progress) {
  AFT_ASSIGN_OR_RETURN(CheckpointFile checkpoint, OpenCheckpoint(dir));
  Import import;
  import.config = std::move(checkpoint.config);
  AFT_RETURN_IF_ERROR(
      InFile(absl::StrCat(dir, "/", kConfigFileName), CheckFormat(import.config, format)));
  if (progress != nullptr) progress->Begin(Fp32Bytes(import.config));
  AFT_RETURN_IF_ERROR(
      CheckTensors(import.config, WithProgress(checkpoint.tensors, progress)).status());
  import.tensors = StoredWeights(import.config, std::move(checkpoint.tensors), format);
  import.metadata = std::move(checkpoint.metadata);
  for (const char* name : kTokenizerFileNames) {
    const std::string path = (std::filesystem::path(dir) / name).string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    AFT_ASSIGN_OR_RETURN(import.files[name], ReadVocabularyText(path));
  }
  AFT_ASSIGN_OR_RETURN(const auto states, FindStateFiles(dir));
  for (const auto& [name, path] : states) {
    AFT_ASSIGN_OR_RETURN(import.files[StateFileName(name)], StateBytes(path, import.config));
  }
  return import;
}

}  // namespace aft
