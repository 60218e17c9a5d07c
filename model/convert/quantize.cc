#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_weights.h"
#include "model/convert/import.h"
#include "model/network/check_tensors.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {

absl::StatusOr<Import> Quantized(const std::string& dir, Number format, Progress* progress) {
  AFT_ASSIGN_OR_RETURN(CheckpointFile checkpoint, OpenCheckpoint(dir));
  Import import;
  import.config = std::move(checkpoint.config);
  // All tensors are checked, then each is read once more: never all of them are in memory as fp32.
  if (progress != nullptr) progress->Begin(2 * Fp32Bytes(import.config));
  const TensorSource tensors = WithProgress(std::move(checkpoint.tensors), progress);
  AFT_RETURN_IF_ERROR(CheckTensors(import.config, tensors).status());
  AFT_ASSIGN_OR_RETURN(import.tensors, StoredWeights(import.config, tensors, format));
  import.metadata = std::move(checkpoint.metadata);
  for (const char* name : kTokenizerFileNames) {
    const std::string path = (std::filesystem::path(dir) / name).string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    AFT_ASSIGN_OR_RETURN(import.files[name], ReadVocabularyText(path));
  }
  return import;
}

}  // namespace aft
